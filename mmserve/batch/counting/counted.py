"""Everything that is counted of a run's records, beyond its sums."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import fields

from mmserve.batch.counting.course import Course, Stretch
from mmserve.batch.counting.faults import Faults
from mmserve.batch.counting.samples import Samples
from mmserve.batch.counting.sketch import Sketch
from mmserve.batch.records import Record
from mmserve.core import Timing

__all__ = ["STAGES", "Counted"]

STAGES = tuple(spec.name for spec in fields(Timing))
"""Stages of which times are kept, in the order that a question passes them."""
_MAX_OPEN_ROWS = 4096
"""Rows remembered as begun; a row's records are written near each other."""


class Counted:
    """Counts so far. Memory: a few thousand numbers and eight rows, however long the run.

    `rows` have a record, `clips` of them are about a clip; `frames` of a row with several
    questions count once. A row whose records are thousands of rows apart counts again.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.clips = 0
        self.frames = 0
        self.notes = 0
        self.stages = {stage: Sketch() for stage in STAGES}
        self.lengths = Sketch()
        self.course = Course()
        self.faults = Faults()
        self.samples = Samples()
        self._begun: OrderedDict[int, bool] = OrderedDict()

    def add(self, record: Record, at_s: float) -> None:
        """Count a record written `at_s` seconds after the beginning. Changes: the counts."""
        is_answer = record.error is None
        is_first = self._begin(record.line, is_answer=is_answer)
        frames = (record.frames_used or 0) if is_first else 0
        if is_first:
            self.frames += frames
            self.clips += record.timestamps_s is not None
            self.samples.begin_row(record.line)
        if record.error is not None:
            self.faults.add(record.line, *record.error)
        else:
            self.samples.add(record)
            self._add_answer(record)
        self.notes += record.note is not None
        usage = record.usage
        self.course.add(
            at_s,
            Stretch(
                questions=1,
                failed=int(not is_answer),
                prompt_tokens=usage.prompt_tokens if usage else 0,
                cached_tokens=usage.cached_tokens if usage else 0,
                completion_tokens=usage.completion_tokens if usage else 0,
                frames=frames,
            ),
        )

    def _begin(self, line: int, *, is_answer: bool) -> bool:
        """Whether it is the row's first answer. Changes: rows begun."""
        had_answer = self._begun.get(line)
        self.rows += had_answer is None
        self._begun[line] = bool(had_answer) or is_answer
        self._begun.move_to_end(line)
        if len(self._begun) > _MAX_OPEN_ROWS:
            self._begun.popitem(last=False)
        return is_answer and not had_answer

    def _add_answer(self, record: Record) -> None:
        if record.usage is not None and record.usage.completion_tokens:
            self.lengths.add(record.usage.completion_tokens)
        if record.timing is not None:
            for stage, sketch in self.stages.items():
                spent_ms = getattr(record.timing, stage)
                if spent_ms > 0:
                    sketch.add(spent_ms)
