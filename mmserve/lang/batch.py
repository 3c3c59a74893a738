"""Many rows of one program: a few threads take rows in order and see each to its end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from mmserve.core import BadRequest
from mmserve.lang.state import ProgramState

__all__ = ["Batch", "BatchStyle"]


@dataclass(frozen=True, slots=True)
class BatchStyle:
    """How rows run and how their states are given."""

    num_threads: int | Literal["auto"] = "auto"
    has_progress_bar: bool = False
    is_lazy: bool = False
    is_by_completion: bool = False
    is_raising: bool = False

    def threads_for(self, num_rows: int) -> int:
        """Threads to use. Raises BadRequest. Pure."""
        wanted = self.num_threads
        if wanted == "auto":
            wanted = max(96, 16 * (os.cpu_count() or 1))
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            message = f"num_threads is {wanted!r}, allowed are 'auto' and whole numbers from 1"
            raise BadRequest(message, field="num_threads", reason="range")
        return min(wanted, num_rows)


class Batch:
    """One batch under way. Mutable; states are taken once, by one reader.

    `begin(row)` gives the row's state and what runs its body to the end. Rows start in `order`,
    if given. Lazy batches run at most `num_threads` rows ahead of their reader.
    """

    def __init__(
        self,
        begin: Callable[[int], tuple[ProgramState, Callable[[], None]]],
        num_rows: int,
        style: BatchStyle,
        order: Sequence[int] | None = None,
    ) -> None:
        self._begin = begin
        self._num_rows = num_rows
        self._order = range(num_rows) if order is None else order
        self._style = style
        self._num_threads = style.threads_for(num_rows)
        self._changed = threading.Condition()
        self._running: dict[int, ProgramState] = {}
        self._done: dict[int, ProgramState] = {}
        self._finished: list[int] = []
        self._next_row = 0
        self._num_given = 0
        self._is_stopped = False
        self._first_failed: int | None = None
        self._fault: BaseException | None = None

    def states(self) -> Iterator[ProgramState]:
        """States of all rows, each when it has ended.

        Raises a row's error if the style says so. Closing it, or Ctrl-C, cancels what runs.
        """
        is_whole = False
        try:
            for _ in range(self._num_threads):
                threading.Thread(target=self._work, name="mmserve-row", daemon=True).start()
            with _progress(self._num_rows, is_shown=self._style.has_progress_bar) as advance:
                for position in range(self._num_rows):
                    yield self._wait_for(position, advance)
            is_whole = True
        finally:
            if not is_whole:
                self._stop()

    def _wait_for(self, position: int, advance: Callable[[int], None]) -> ProgramState:
        while True:
            with self._changed:
                if self._fault is not None:
                    raise self._fault
                advance(len(self._finished))
                failed = self._first_failed
                row = position
                if self._style.is_by_completion:
                    row = self._finished[position] if len(self._finished) > position else -1
                if failed is None and row in self._done:
                    self._num_given += 1
                    self._changed.notify_all()
                    return self._done.pop(row)
                if failed is None:
                    self._changed.wait()
                    continue
            self._raise_row(failed)

    def _raise_row(self, row: int) -> None:
        error = self._done[row].error()
        if error is not None:
            error.row = row  # type: ignore[attr-defined]
            raise error

    def _work(self) -> None:
        try:
            while (row := self._take_row()) is not None:
                self._run(row)
        except BaseException as error:  # noqa: BLE001  raised where the states are read
            with self._changed:
                self._fault = error
                self._is_stopped = True
                self._changed.notify_all()

    def _run(self, row: int) -> None:
        state, run_body = self._begin(row)
        with self._changed:
            self._running[row] = state
            is_stopped = self._is_stopped
        if is_stopped:
            state.cancel()
        run_body()
        execution = state.execution
        execution.monitor.wait(lambda: execution.is_idle)
        with self._changed:
            del self._running[row]
            self._done[row] = state
            self._finished.append(row)
            if self._style.is_raising and execution.error and self._first_failed is None:
                self._first_failed = row
                self._is_stopped = True
            self._changed.notify_all()

    def _take_row(self) -> int | None:
        with self._changed:
            while not self._is_stopped and self._next_row < self._num_rows:
                if (
                    not self._style.is_lazy
                    or self._next_row < self._num_given + self._num_threads
                ):
                    self._next_row += 1
                    return self._order[self._next_row - 1]
                self._changed.wait()
            return None

    def _stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            running = list(self._running.values())
            self._changed.notify_all()
        for state in running:
            state.cancel()


@contextlib.contextmanager
def _progress(num_rows: int, *, is_shown: bool) -> Iterator[Callable[[int], None]]:
    if not is_shown:
        yield lambda _num_done: None
        return
    from rich.progress import Progress  # noqa: PLC0415  slow to import, and rarely asked for

    with Progress() as bar:
        task = bar.add_task("rows", total=num_rows)
        yield lambda num_done: bar.update(task, completed=num_done)
