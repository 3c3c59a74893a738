"""Who of the waiting goes first.

    1  retracted sequences, and those overtaken as often as allowed: nobody passes them
    2  higher priority
    3  the longer cached prefix (policy "longest-prefix")
    4  the earlier arrival

Bound: a sequence that could be admitted is overtaken by at most `max_overtakes` later arrivals,
since after that it is in the first class, where arrival alone decides, and whoever is refused
there for want of slots stops all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice

from mmserve.sched.sequence import Sequence

__all__ = ["WaitingLine"]

_WINDOW = 1024
"""Earliest arrivals that are compared in one step; keeps a step cheap when very many wait."""


class WaitingLine:
    """The sequences that hold no KV, in the order of arrival.

    Args:
        cached: tokens of a sequence that are cached now; None to ignore caching.
        max_overtakes: later arrivals that may be admitted before a waiting one.
    """

    def __init__(self, cached: Callable[[Sequence], int] | None, max_overtakes: int) -> None:
        self._cached = cached
        self._max_overtakes = max_overtakes
        self._resuming: dict[int, Sequence] = {}
        self._arrived: dict[int, Sequence] = {}
        self._overdue: dict[int, Sequence] = {}
        self._num_promoted = 0
        """How often somebody has come into the first class."""

    def __len__(self) -> int:
        return len(self._resuming) + len(self._arrived)

    def __iter__(self) -> Iterator[Sequence]:
        return chain(self._resuming.values(), self._arrived.values())

    def add(self, sequence: Sequence) -> None:
        """A newcomer. Changes: the line."""
        self._arrived[sequence.sequence_id] = sequence
        if self._max_overtakes <= 0:
            self._promote(sequence, self._overdue)

    def put_back(self, sequence: Sequence) -> None:
        """A retracted sequence waits again, before all newcomers. Changes: the line."""
        self._promote(sequence, self._resuming)

    def remove(self, sequence: Sequence) -> None:
        """It waits no more, without having been admitted. Changes: the line."""
        self._overdue.pop(sequence.sequence_id, None)
        if self._resuming.pop(sequence.sequence_id, None) is None:
            del self._arrived[sequence.sequence_id]

    def admit(self, sequence: Sequence, *, blocked: set[int]) -> None:
        """It runs now. Changes: the line; overtakes of earlier arrivals.

        `blocked` holds ids of those that could not run anyway, for want of pixels or because a
        neighbour computes their prefix; they are not counted as overtaken.
        """
        is_newcomer = sequence.sequence_id in self._arrived
        self.remove(sequence)
        if not is_newcomer:
            return
        for other in self._arrived.values():
            if other.arrival > sequence.arrival:
                break
            if other.sequence_id not in blocked:
                other.overtakes += 1
                if other.overtakes == self._max_overtakes:
                    self._promote(other, self._overdue)

    def is_first_class(self, sequence: Sequence) -> bool:
        """Whether nobody may pass it. Pure."""
        return sequence.sequence_id in self._overdue or sequence.sequence_id in self._resuming

    def candidates(self) -> Iterator[Sequence]:
        """Who may be admitted, first ones first, each once; `admit` may be called meanwhile.

        Changes: nothing itself. Cost: a match for each of the 1024 earliest arrivals.
        """
        tried: set[int] = set()
        first_class, num_promoted = self._first_class(), self._num_promoted
        ordered: Iterator[Sequence] | None = None
        while True:
            if num_promoted != self._num_promoted:
                first_class, num_promoted = self._first_class(), self._num_promoted
            candidate = next((s for s in first_class if s.sequence_id not in tried), None)
            if candidate is None:
                if ordered is None:
                    window = islice(self._arrived.values(), _WINDOW)
                    ordered = iter(sorted(window, key=self._sort_key))
                candidate = next((s for s in ordered if s.sequence_id not in tried), None)
            if candidate is None:
                return
            tried.add(candidate.sequence_id)
            yield candidate

    def _promote(self, sequence: Sequence, first_class: dict[int, Sequence]) -> None:
        first_class[sequence.sequence_id] = sequence
        self._num_promoted += 1

    def _first_class(self) -> Iterator[Sequence]:
        """Those whom nobody may pass, by arrival."""
        members = chain(self._resuming.values(), self._overdue.values())
        return iter(sorted(members, key=lambda sequence: sequence.arrival))

    def _sort_key(self, sequence: Sequence) -> tuple[int, int, int]:
        num_cached = 0 if self._cached is None else self._cached(sequence)
        return (-sequence.spec.priority, -num_cached, sequence.arrival)
