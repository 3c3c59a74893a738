"""Why a grammar is not compiled, in words; the latest reasons are remembered."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeVar

from mmserve.core import Aborted, Busy, Constraint, ConstraintRefused, MmserveError

__all__ = [
    "RecentRefusals",
    "closed",
    "copy_of",
    "never_begun",
    "overdue",
    "queue_full",
    "text_bytes",
    "too_large",
]

_E = TypeVar("_E", bound=MmserveError)


class RecentRefusals:
    """The latest refusals, least recently asked for out first. Not safe from several threads.

    Args:
        max_entries: most refusals kept.
        max_characters: most characters of their grammars' texts together.
    """

    def __init__(self, *, max_entries: int = 256, max_characters: int = 1 << 20) -> None:
        self._max_entries = max_entries
        self._max_characters = max_characters
        self._num_characters = 0
        self._kept: OrderedDict[Constraint, ConstraintRefused] = OrderedDict()

    def get(self, constraint: Constraint) -> ConstraintRefused | None:
        """Why the constraint was refused, to be raised once. Changes: the order."""
        error = self._kept.get(constraint)
        if error is None:
            return None
        self._kept.move_to_end(constraint)
        return copy_of(error)

    def add(self, constraint: Constraint, error: ConstraintRefused) -> None:
        """Remember a refusal, unless its text alone is too long. Changes: the entries."""
        if constraint in self._kept or len(constraint.value) > self._max_characters:
            return
        self._kept[constraint] = copy_of(error)
        self._num_characters += len(constraint.value)
        while (
            len(self._kept) > self._max_entries or self._num_characters > self._max_characters
        ):
            oldest, _ = self._kept.popitem(last=False)
            self._num_characters -= len(oldest.value)


def copy_of(error: _E) -> _E:
    """An error with the same words and fields, and no traceback: each reader raises its own."""
    return type(error)(error.message, hint=error.hint, **error.fields)


def text_bytes(constraint: Constraint, limit: int) -> int:
    """Length of a grammar in UTF-8; short ones are taken at a glance, and not over the limit.

    Pure. Raises ConstraintRefused if it is no text at all.
    """
    kind = constraint.kind
    value: object = constraint.value
    if not isinstance(value, str):
        message = f"the {kind} is of type {type(value).__name__}, it must be a text"
        raise ConstraintRefused(message, field=kind, reason="type")
    if 4 * len(value) <= limit:
        return len(value)
    return len(value.encode("utf-8", "surrogatepass"))


def too_large(constraint: Constraint, num_bytes: int, limit: int) -> ConstraintRefused:
    """A grammar's text is over the limit. Pure."""
    return ConstraintRefused(
        f"the {constraint.kind} has {num_bytes:,} bytes, the limit is {limit:,}",
        hint="send a smaller one, or raise max_grammar_bytes",
        field=constraint.kind,
        reason="too_large",
        bytes=num_bytes,
        limit_bytes=limit,
    )


def overdue(constraint: Constraint, timeout_s: float) -> ConstraintRefused:
    """A grammar was begun, and not done when its request's time was up. Pure."""
    return ConstraintRefused(
        f"the {constraint.kind} was not compiled within {timeout_s:g} s",
        hint="make it simpler, or ask again later: its compilation goes on",
        field=constraint.kind,
        reason="timeout",
        timeout_s=timeout_s,
    )


def never_begun(timeout_s: float) -> Busy:
    """No worker came to a grammar while its request had time. Pure."""
    return Busy(
        f"other grammars kept this one waiting for {timeout_s:g} s, the limit",
        hint="try again later",
        retry_after_s=1.0,
    )


def queue_full(limit: int) -> Busy:
    """There is no place for one more grammar. Pure."""
    return Busy(
        f"{limit:,} grammars wait to be compiled, the limit of max_waiting_grammars",
        hint="try again later",
        retry_after_s=1.0,
    )


def closed() -> Aborted:
    """The engine goes, and nobody will need the grammar. Pure."""
    return Aborted("the grammar was not compiled: the engine is closed")
