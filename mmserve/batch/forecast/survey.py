"""One pass over the plan: counts, and a few groups spread evenly over it.

Of groups 0, 1, 2, ... every k-th is kept. When four times as many are kept as wanted, every
second goes and k doubles, so memory does not grow and no second pass is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mmserve.batch.row import Row, RowFault

__all__ = ["KeptGroup", "Survey"]

_MAX_QUESTIONS = 16
"""Questions of a group that are looked at; the others are counted like them."""
_MAX_FAULTS = 20


@dataclass(slots=True)
class KeptGroup:
    """A group that is looked at: some of its (row, question index), and how many it has."""

    asked: list[tuple[Row, int]] = field(default_factory=list)
    num_questions: int = 0

    def add(self, row: Row) -> None:
        """Take in a row. Changes: the group."""
        self.num_questions += len(row.questions)
        room = _MAX_QUESTIONS - len(self.asked)
        # What was answered before a turn is not known, so turns are asked by themselves.
        row = replace(row, is_conversation=False)
        self.asked += [(row, index) for index in range(len(row.questions))][: max(0, room)]


class Survey:
    """What a plan holds; `kept` are groups spread evenly, `faults` the first lines at fault."""

    def __init__(self, max_groups: int) -> None:
        self.rows = 0
        self.questions = 0
        self.answers = 0
        self.groups = 0
        self.clips = 0
        self.pictures = 0
        self.conversations = 0
        self.num_faults = 0
        self.max_tokens = 0
        self.faults: list[RowFault] = []
        self._max_groups = max_groups
        self._stride = 1
        self._kept: list[KeptGroup] = []
        self._current: KeptGroup | None = None

    def read(self, plan: Iterable[tuple[object, Row]], faults: Iterable[RowFault]) -> None:
        """Count the whole plan, a group's rows together. Once. Changes: all counts."""
        last: object = None
        for group, row in plan:
            if group != last or not self.groups:
                self._begin_group(row)
                last = group
            self._add(row)
        for fault in faults:
            self.num_faults += 1
            if len(self.faults) < _MAX_FAULTS:
                self.faults.append(fault)

    @property
    def kept(self) -> list[KeptGroup]:
        """At most as many groups as wanted, first to last. Pure."""
        found = self._kept
        num = min(len(found), self._max_groups)
        return [found[len(found) * place // num] for place in range(num)]

    def _add(self, row: Row) -> None:
        self.rows += 1
        self.questions += len(row.questions)
        self.answers += len(row.questions) * row.num_samples
        self.conversations += row.is_conversation
        if self._current is not None:
            self._current.add(row)

    def _begin_group(self, row: Row) -> None:
        number, self.groups = self.groups, self.groups + 1
        self.clips += row.video is not None
        self.pictures += len(row.images)
        self._current = None
        if number % self._stride:
            return
        if len(self._kept) >= 4 * self._max_groups:
            self._kept, self._stride = self._kept[::2], self._stride * 2
            if number % self._stride:
                return
        self._current = KeptGroup()
        self._kept.append(self._current)
