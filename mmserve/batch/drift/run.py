"""A whole file on a side, several prompts at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mmserve.batch.drift.asks import DEFAULT_TASK, Ask, parse_ask
from mmserve.batch.drift.compare import Pair, compare
from mmserve.batch.drift.said import Said
from mmserve.batch.drift.side import ChatSide
from mmserve.batch.formats import numbered_lines
from mmserve.batch.row import RowFault
from mmserve.core import BadRequest

__all__ = ["ask_all", "pair_up", "read_asks"]

Progress = Callable[[int, int], None]


def read_asks(path: Path) -> list[Ask | RowFault]:
    """All prompts of a file. Raises BadRequest if there is not one line."""
    found = [parse_ask(line, content) for line, content in numbered_lines(path)]
    if not found:
        message = f"{path} holds no row"
        raise BadRequest(message, field="file", reason="empty")
    return found


def ask_all(
    side: ChatSide,
    asks: Sequence[Ask | RowFault],
    *,
    concurrency: int,
    on_progress: Progress | None = None,
) -> list[Said]:
    """What the side says to each prompt, in their order; a line that is no row is not asked.

    Cost: holds all answers. On any exception, what has not been sent is not sent any more.
    """
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="mmserve-drift")
    said = []
    try:
        for answer in pool.map(lambda ask: _ask(side, ask), asks):
            said.append(answer)
            if on_progress is not None:
                on_progress(len(said), len(asks))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return said


def _ask(side: ChatSide, ask: Ask | RowFault) -> Said:
    if isinstance(ask, RowFault):
        return Said(error=("bad_row", ask.message))
    return side.ask(ask)


def pair_up(
    asks: Sequence[Ask | RowFault], a: Sequence[Said], b: Sequence[Said]
) -> tuple[Pair, ...]:
    """Both sides' answers to each prompt. Pure."""
    return tuple(
        compare(
            ask.line,
            ask.row_id,
            ask.task if isinstance(ask, Ask) else DEFAULT_TASK,
            mine,
            other,
        )
        for ask, mine, other in zip(asks, a, b, strict=True)
    )
