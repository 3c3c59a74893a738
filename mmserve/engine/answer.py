"""Outputs of one request gathered into whole answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.core import Finish, Output, Timing, TokenLogprob, Usage

__all__ = ["Answer", "collect"]


@dataclass(frozen=True, slots=True)
class Answer:
    """All that one request gave; tuples have one entry for each of its `n` sequences."""

    texts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    finishes: tuple[Finish, ...]
    usages: tuple[Usage, ...]
    timings: tuple[Timing, ...]
    logprobs: tuple[tuple[TokenLogprob, ...], ...]
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def text(self) -> str:
        """The first answer's text."""
        return self.texts[0]

    @property
    def usage(self) -> Usage:
        """The first answer's token counts."""
        return self.usages[0]


def collect(outputs: Iterable[Output]) -> Answer:
    """Gather outputs until the request has ended. Raises what a sequence ended with."""
    news: dict[int, list[Output]] = {}
    for output in outputs:
        if output.finish is not None and output.finish.error is not None:
            raise output.finish.error
        news.setdefault(output.index, []).append(output)
    rows = [news[index] for index in sorted(news)]
    ends = [row[-1] for row in rows]
    scores = next((o.prompt_logprobs for o in rows[0] if o.prompt_logprobs is not None), None)
    return Answer(
        texts=tuple("".join(o.text for o in row) for row in rows),
        token_ids=tuple(tuple(t for o in row for t in o.token_ids) for row in rows),
        finishes=tuple(end.finish for end in ends if end.finish is not None),
        usages=tuple(end.usage for end in ends),
        timings=tuple(end.timing or Timing() for end in ends),
        logprobs=tuple(tuple(entry for o in row for entry in o.logprobs) for row in rows),
        prompt_logprobs=scores,
    )
