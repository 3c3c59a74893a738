"""Answer every question of a job: rows overlap, records are written as they are done.

    plan     rows ...    | row 4  row 9  row 5        | row 12  row 7 ... | row ...
    fate     all written | questions under way,       | media are being   | not yet
                         | or waiting to be asked     | prepared          | read
                         | again                      |                   |

A row's questions are handed in together, so its media are decoded, encoded and prefilled once
and its questions are packed into the same steps. The next row is handed in as soon as fewer
than `concurrency` questions are under way. Turns of a conversation follow each other.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from mmserve.batch.ahead import Ahead, Next
from mmserve.batch.asker import Asker, AskTicket
from mmserve.batch.elsewhere import Elsewhere
from mmserve.batch.faults import Backoff, Patience
from mmserve.batch.formats import RawRow
from mmserve.batch.job import Input, JobIndex, Kept, Plan, asked_digest
from mmserve.batch.least import LeastCount
from mmserve.batch.output import Output, OutputMode
from mmserve.batch.readers import Ended, Readers
from mmserve.batch.records import (
    Answer,
    Record,
    answered_record,
    fault_record,
    record_line,
    refused_record,
)
from mmserve.batch.row import RowFault
from mmserve.batch.settings import AskSettings, RowSettings
from mmserve.batch.summary import Summary, Tally
from mmserve.batch.turns import Step, first_steps, next_turn, request_for
from mmserve.core import Broken, MmserveError, Request

__all__ = ["Answering", "BatchSettings", "Progress"]

Progress = Callable[[Summary], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How to run a file.

    Args:
        ask: what holds for rows that do not say otherwise.
        rows: how the rows are read.
        mode: what to do with records already in the output.
        concurrency: questions under way at once; a row's questions always go together.
        open_clips: clips and pictures made ready ahead of their questions.
        max_errors: error records after which the run is stopped; None for any number.
        backoff: how failures that may pass are waited out.
        fixed: what else answers depend on, by name; a run is not taken up with other values.
    """

    ask: AskSettings = field(default_factory=AskSettings)
    rows: RowSettings = field(default_factory=RowSettings)
    mode: OutputMode = OutputMode.NEW
    concurrency: int = 32
    open_clips: int = 4
    max_errors: int | None = None
    backoff: Backoff = field(default_factory=Backoff)
    fixed: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True)
class _Asked:
    """A request under way, or waiting to be made again."""

    asked_of: Next
    step: Step
    request: Request
    ticket: AskTicket
    num_failed: int = 0


class Answering:
    """One pass over the plan.

    Args:
        client: who answers; for `do` it takes questions.
        index: committed; gets every record first.
        output: gets every record behind it.
        rows: reads contents of the plan.
        settings: how to run.
        tally: counts what is written.
        on_progress: called at the start and after each record.
    """

    def __init__(
        self,
        client: Asker | Elsewhere,
        index: JobIndex,
        output: Output,
        rows: Input,
        settings: BatchSettings,
        tally: Tally,
        on_progress: Progress | None,
    ) -> None:
        self._client = cast("Asker", client)  # one that is Elsewhere gets no question
        self._index = index
        self._output = output
        self._rows = rows
        self._settings = settings
        self._tally = tally
        self._on_progress = on_progress
        self._readers = Readers(settings.concurrency)
        self._patience = Patience(settings.max_errors)
        self._numbers = itertools.count()
        self._asked: dict[int, _Asked] = {}
        self._again: list[tuple[float, int]] = []
        self._count = LeastCount(client)

    def do(self, plan: Plan) -> None:
        """Answer what is left to answer. Changes: the index, the output."""
        self._report()
        self._write_faults(plan)
        ahead = Ahead(
            plan.rows(),
            self._rows,
            self._settings.ask,
            getattr(self._client, "prepare", None),
            self._settings.open_clips,
        )
        self._fill(ahead)
        while self._asked:
            ended = self._readers.next(self._until_again_s())
            if ended is not None:
                self._end(ended)
            self._ask_again()
            self._fill(ahead)

    def take(self, plan: Plan, elsewhere: Elsewhere) -> None:
        """Have others answer what is left; write it as it comes. Changes: as `do`."""
        self._report()
        self._write_faults(plan)
        for records in elsewhere.answered(plan.rows()):
            self._write([record for record in records if self._is_due(record)])

    def _is_due(self, record: Record) -> bool:
        done = self._index.records_of(record.line)
        return (record.question_index, record.sample_index or 0) not in done

    def cancel(self) -> None:
        """End what is under way, and the threads that read it. Once."""
        for asked in self._asked.values():
            asked.ticket.cancel()
        self._readers.close()

    def _report(self) -> None:
        if self._on_progress is not None:
            self._on_progress(self._tally.summary())

    # --- handing in --------------------------------------------------------------------------

    def _fill(self, ahead: Ahead) -> None:
        """Hand in rows until enough questions are under way. Changes: `ahead`, the asked."""
        while len(self._asked) < self._settings.concurrency:
            found = ahead.next()
            if found is None:
                return
            done = self._index.records_of(found.row.line)
            self._take(found, first_steps(found.row, done))

    def _take(self, of: Next, steps: tuple[list[Step], list[Record]]) -> None:
        """Ask what comes next, write what will not be asked."""
        to_ask, records = steps
        for step in to_ask:
            request = request_for(of.row, step, self._settings.ask)
            number = next(self._numbers)
            self._count.begin(of.group_id)
            self._asked[number] = _Asked(of, step, request, self._client.submit(request))
            self._read(number)
        self._write(records)

    def _read(self, number: int) -> None:
        asked = self._asked[number]
        self._readers.add(number, asked.ticket, asked.request.num_sequences)

    def _until_again_s(self) -> float | None:
        return max(self._again[0][0] - time.monotonic(), 0.0) if self._again else None

    def _ask_again(self) -> None:
        """Hand in again what has waited long enough. Changes: what waits."""
        while self._again and self._again[0][0] <= time.monotonic():
            _, number = heapq.heappop(self._again)
            asked = self._asked[number]
            asked.ticket = self._client.submit(asked.request)
            self._read(number)

    # --- what became of it -------------------------------------------------------------------

    def _end(self, ended: Ended) -> None:
        """Write what became of a request, or have it wait to be made again."""
        if ended.crash is not None:
            raise ended.crash
        asked = self._asked[ended.number]
        wait_s = self._wait_s(asked, ended.fates)
        if wait_s is not None:
            heapq.heappush(self._again, (time.monotonic() + wait_s, ended.number))
            return
        del self._asked[ended.number]
        fates = ended.fates
        if len(fates) < asked.request.num_sequences:
            fates *= asked.request.num_sequences
        self._settle(asked, fates)
        self._count.end(asked.asked_of.group_id)

    def _wait_s(self, asked: _Asked, fates: tuple[Answer | MmserveError, ...]) -> float | None:
        """How long to wait before it is made again; None if it is not. Changes: its tries."""
        errors = [fate for fate in fates if isinstance(fate, MmserveError)]
        if len(errors) < len(fates):
            return None
        asked.num_failed += 1
        return self._settings.backoff.wait_s(errors[0], asked.num_failed)

    def _settle(self, asked: _Asked, fates: tuple[Answer | MmserveError, ...]) -> None:
        of, step = asked.asked_of, asked.step
        self._tally.tokens_least = self._count.add(of.group_id, asked.request, fates)
        self._write(
            [
                self._record(of, step, sample, fate)
                for sample, fate in zip(step.samples, fates, strict=True)
                if sample in step.due
            ]
        )
        if of.row.is_conversation:
            done = self._index.records_of(of.row.line)
            self._take(of, next_turn(of.row, done))

    def _record(self, of: Next, step: Step, sample: int, fate: Answer | MmserveError) -> Record:
        if isinstance(fate, MmserveError):
            self._patience.note_failure(fate)
            record = refused_record(of.row, step.question_index, fate)
        else:
            self._patience.note_answer()
            record = answered_record(of.row, step.question_index, fate)
        return record if of.row.num_samples == 1 else replace(record, sample_index=sample)

    def _write_faults(self, plan: Plan) -> None:
        for planned in plan.faults():
            fault = self._rows.parse(RawRow(planned.line, planned.content))
            if not isinstance(fault, RowFault):
                raise Broken(f"line {planned.line} was no row when the run began, and is now")
            done = self._index.records_of(planned.line)
            left = (n for n in range(len(fault.questions)) if (n, 0) not in done)
            self._write([fault_record(fault, index) for index in left])

    def _write(self, records: list[Record]) -> None:
        """Put records on disk, first in the index. Changes: index, output, tally."""
        if not records:
            return
        kept = [_kept(record) for record in records]
        self._index.write(kept)
        for one, record in zip(kept, records, strict=True):
            self._output.write(one)
            self._tally.add(record)
            self._report()
            if record.error is not None:
                self._patience.note_error(record.error[1])


def _kept(record: Record) -> Kept:
    key = (record.line, record.question_index, record.sample_index or 0)
    asked = asked_digest(record.row_id, record.question)
    return Kept(key, asked, record.error is not None, record_line(record))
