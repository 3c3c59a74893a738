"""Answer every question of a batch file: rows overlap, records come out in the input's order.

    input    line 1 ...  line 4 | line 5   line 6   line 7 | line 8 ...
    fate     records written    | questions under way      | not yet read

A row's questions are handed in together, so its media are decoded, encoded and prefilled once
and its questions are packed into the same steps. The next row is handed in as soon as fewer
than `concurrency` questions are under way. Records are written oldest first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.asks import request_of
from mmserve.batch.output import OutputFile, OutputMode
from mmserve.batch.records import (
    Record,
    answered_record,
    fault_record,
    read_answer,
    refused_record,
)
from mmserve.batch.row import Row, RowFault
from mmserve.batch.rows import Rows
from mmserve.batch.settings import AskSettings, RowSettings
from mmserve.batch.summary import Summary, Tally
from mmserve.core import BackendFailed, Broken, Busy, MmserveError

__all__ = ["Answering", "BatchSettings", "Progress"]

_MAX_OWN_FAILURES = 20
_MAX_TRIES = 10
_MAX_WAIT_S = 5.0

Progress = Callable[[Summary], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How to run a file.

    Args:
        ask: what holds for rows that do not say otherwise.
        rows: how the rows are read.
        mode: what to do with records already in the output.
        concurrency: questions under way at once; a row's questions always go together.
    """

    ask: AskSettings = field(default_factory=AskSettings)
    rows: RowSettings = field(default_factory=RowSettings)
    mode: OutputMode = OutputMode.NEW
    concurrency: int = 32


@dataclass(slots=True)
class _Asked:
    """A question under way."""

    row: Row
    question_index: int
    ticket: AskTicket


class Answering:
    """One pass over the input; `_pending` holds what has no record yet, oldest first.

    Args:
        client: who answers.
        output: open, and begun.
        settings: how to run.
        tally: counts what is written.
        on_progress: called at the start and after each record.
    """

    def __init__(
        self,
        client: Asker,
        output: OutputFile,
        settings: BatchSettings,
        tally: Tally,
        on_progress: Progress | None,
    ) -> None:
        self._client = client
        self._output = output
        self._settings = settings
        self._tally = tally
        self._on_progress = on_progress
        self._pending: deque[Record | _Asked] = deque()
        self._num_own_failures = 0

    def do(self, source: Rows) -> None:
        """Answer what is left to answer. Changes: the output."""
        self._report()
        rows = self._rows(source)
        self._fill(rows)
        while self._pending:
            first = self._pending[0]
            record = first if isinstance(first, Record) else self._answer(first)
            self._output.write(record)
            self._tally.add(record)
            self._pending.popleft()
            self._report()
            self._fill(rows)

    def cancel(self) -> None:
        """End what is under way. Idempotent."""
        for pending in self._pending:
            if isinstance(pending, _Asked):
                pending.ticket.cancel()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._tally.summary())

    def _rows(self, source: Rows) -> Iterator[Row | RowFault]:
        return map(source.parse, source)

    def _fill(self, rows: Iterator[Row | RowFault]) -> None:
        """Hand in rows until enough questions are under way. Changes: `rows`, pending."""
        while len(self._pending) < self._settings.concurrency:
            row = next(rows, None)
            if row is None:
                return
            self._pending.extend(
                self._ask(row, index)
                for index in range(len(row.questions))
                if (row.line, index) not in self._output.kept
            )

    def _ask(self, row: Row | RowFault, question_index: int) -> Record | _Asked:
        if isinstance(row, RowFault):
            return fault_record(row, question_index)
        return _Asked(row, question_index, self._submit(row, question_index))

    def _submit(self, row: Row, question_index: int) -> AskTicket:
        return self._client.submit(request_of(row, question_index, self._settings.ask))

    def _answer(self, asked: _Asked) -> Record:
        """Wait for the answer or the error; hands in again if the engine was busy."""
        for tries_left in reversed(range(_MAX_TRIES)):
            try:
                answer = read_answer(asked.ticket)
            except Busy as error:
                if not tries_left:
                    return self._refused(asked, error)
                _wait(error)
                asked.ticket = self._submit(asked.row, asked.question_index)
            except MmserveError as error:
                return self._refused(asked, error)
            else:
                self._num_own_failures = 0
                return answered_record(asked.row, asked.question_index, answer)
        raise AssertionError("unreachable: the last try returns")

    def _refused(self, asked: _Asked, error: MmserveError) -> Record:
        is_own = isinstance(error, Broken | BackendFailed | Busy)
        self._num_own_failures = self._num_own_failures + 1 if is_own else 0
        if self._num_own_failures >= _MAX_OWN_FAILURES:
            raise Broken(
                f"the engine failed {self._num_own_failures} questions in a row, last: {error}",
                hint="--resume --retry-errors continues the run",
            ) from error
        return refused_record(asked.row, asked.question_index, error)


def _wait(error: Busy) -> None:
    asked_s = error.fields.get("retry_after_s")
    time.sleep(min(asked_s, _MAX_WAIT_S) if isinstance(asked_s, int | float) else _MAX_WAIT_S)
