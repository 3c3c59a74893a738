"""Answering by rows, not by questions: in the order of the plan, groups kept whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from mmserve.batch.records import Record

__all__ = ["Elsewhere", "PlannedRow"]


class PlannedRow(Protocol):
    """A row whose turn it is, as the plan gives it."""

    @property
    def line(self) -> int:
        """Of the input, from 1."""
        ...

    @property
    def group_id(self) -> bytes | None:
        """The same for rows about the same media."""
        ...

    @property
    def content(self) -> bytes:
        """Its JSON object."""
        ...


@runtime_checkable
class Elsewhere(Protocol):
    """Answers whole rows, with all their questions, retries and turns."""

    def answered(self, planned: Iterable[PlannedRow]) -> Iterator[Sequence[Record]]:
        """The records of each group, once, in any order. May read all of `planned` first."""
        ...
