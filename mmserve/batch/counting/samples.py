"""A few rows to show, each with its first questions and answers.

Source: reservoir sampling, Vitter 1985, algorithm R: after n rows each is kept with the chance
8 / n. The seed is fixed, so that the same records in the same order give the same samples.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from mmserve.batch.records import Record

__all__ = ["Sample", "Samples"]

_MAX_SAMPLES = 8
_MAX_QUESTIONS = 6


@dataclass(slots=True)
class Sample:
    """A row that is shown; `records` are its answers, the first few."""

    line: int
    records: list[Record] = field(default_factory=list)


class Samples:
    """Rows chosen so far."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)
        self._chosen: list[Sample] = []
        self._num_rows = 0

    def begin_row(self, line: int) -> None:
        """Choose whether a row of which a first answer comes is kept. Changes: the choice."""
        self._num_rows += 1
        if len(self._chosen) < _MAX_SAMPLES:
            self._chosen.append(Sample(line))
            return
        place = self._random.randrange(self._num_rows)
        if place < _MAX_SAMPLES:
            self._chosen[place] = Sample(line)

    def add(self, record: Record) -> None:
        """Keep an answer if it is of a chosen row. Changes: the sample."""
        for sample in self._chosen:
            if sample.line == record.line and len(sample.records) < _MAX_QUESTIONS:
                sample.records.append(record)

    def chosen(self) -> list[Sample]:
        """The samples in the input's order. Pure."""
        return sorted(self._chosen, key=lambda sample: sample.line)
