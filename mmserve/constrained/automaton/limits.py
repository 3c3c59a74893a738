"""How much work a pattern may make: counted, not timed, so that all machines refuse alike."""

from __future__ import annotations

from typing import NoReturn

from mmserve.core import ConstraintRefused

__all__ = ["MAX_ATOMS", "MAX_CELLS", "MAX_STATES", "Work", "refuse_size"]

MAX_STATES = 24_000
MAX_ATOMS = 8_192
MAX_CELLS = 3_000_000
"""Entries of the table of states and atoms, 4 bytes each."""


class Work:
    """Counts one kind of work of one pattern up to a limit. Mutable."""

    def __init__(self, what: str, limit: int) -> None:
        self.num_done = 0
        self._what = what
        self._limit = limit

    def add(self, amount: int) -> None:
        """Count some more. Raises ConstraintRefused past the limit. Changes: the count."""
        self.num_done += amount
        if self.num_done > self._limit:
            refuse_size(self._what, self._limit)


def refuse_size(what: str, limit: int) -> NoReturn:
    """Raise the refusal of a pattern that needs too many of something."""
    raise ConstraintRefused(
        f"the regex is too large: it needs more than {limit:,} {what}",
        field="regex",
        reason="too_large",
        position=0,
        limit=limit,
        hint="bound its repeats more tightly, or split it",
    )
