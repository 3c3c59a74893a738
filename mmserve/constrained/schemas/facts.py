"""Facts: one way to satisfy a place, as what a value of each type must be.

    {"type": ["string", "null"], "maxLength": 3}   one alternative: types, and a fact on strings
    {"anyOf": [A, B]}                              the alternatives of A and those of B

Types are seven: `integer` and `fraction` share the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from mmserve.constrained.schemas.document import Place

__all__ = [
    "TYPES",
    "Conj",
    "Facts",
    "ItemLayer",
    "NameLayer",
    "Text",
    "distinct",
    "join",
    "key_of",
    "type_of",
]

TYPES = ("null", "boolean", "integer", "fraction", "string", "array", "object")
_ALL = frozenset(TYPES)

Conj = tuple[Place, ...]
"""Places that one value must satisfy at once, each once, in order."""
Bound = tuple[Fraction, bool]
"""A bound, and whether it is itself outside."""


@dataclass(frozen=True, slots=True)
class Text:
    """A pattern for whole strings in the automaton's syntax, and for a search in Python's."""

    pattern: str
    written: str
    is_exact: bool = False
    """Whether all validators read it alike, so that what it leaves out does not match."""


@dataclass(frozen=True, slots=True)
class ItemLayer:
    """What one subschema says of an array's items; None says nothing."""

    first: tuple[Place, ...] = ()
    rest: Place | None = None
    is_silent: bool = False
    """Whether it comes from a negation, which leaves its items unevaluated."""

    def at(self, order: int) -> Place | None:
        """What holds for one item. Pure."""
        return self.first[order] if order < len(self.first) else self.rest


@dataclass(frozen=True, slots=True)
class NameLayer:
    """What one subschema says of an object's properties; None says nothing."""

    named: Mapping[str, Place] = field(default_factory=dict, hash=False)
    patterns: tuple[tuple[str, str, Place], ...] = ()
    """Each as written, as translated for whole names, and what holds for its values."""
    rest: Place | None = None
    is_silent: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """One alternative: every fact must hold if the value is of its type."""

    types: frozenset[str] = _ALL
    values: tuple[Any, ...] | None = None
    """If not None, the value is one of these (JSON values)."""
    banned: tuple[Any, ...] = ()
    low: Bound | None = None
    high: Bound | None = None
    steps: tuple[Fraction, ...] = ()
    min_length: int = 0
    max_length: int | None = None
    texts: tuple[Text, ...] = ()
    unlike: tuple[Text, ...] = ()
    """What a string must not match, by any reading."""
    items: tuple[ItemLayer, ...] = ()
    min_items: int = 0
    max_items: int | None = None
    is_unique: bool = False
    contained: tuple[tuple[Place, int, int | None], ...] = ()
    """Each: what at least so many items, and at most so many, must satisfy."""
    layers: tuple[NameLayer, ...] = ()
    required: tuple[str, ...] = ()
    absent: frozenset[str] = frozenset()
    names: tuple[Place, ...] = ()
    """What every name, as a string, must satisfy."""
    min_names: int = 0
    max_names: int | None = None
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Where a keyword that may have to be refused stands."""

    @property
    def is_open(self) -> bool:
        """Whether any value will do."""
        return self == Facts()

    def meet(self, other: Facts) -> Facts | None:
        """Both at once; None if no value can be. Pure."""
        values = _meet_values(self.values, other.values)
        met = Facts(
            types=self.types & other.types,
            values=values,
            banned=distinct(self.banned + other.banned),
            low=max(filter(None, (self.low, other.low)), default=None),
            high=min(
                filter(None, (self.high, other.high)),
                key=lambda bound: (bound[0], not bound[1]),
                default=None,
            ),
            steps=distinct(self.steps + other.steps),
            min_length=max(self.min_length, other.min_length),
            max_length=_least(self.max_length, other.max_length),
            texts=distinct(self.texts + other.texts),
            unlike=distinct(self.unlike + other.unlike),
            items=distinct(self.items + other.items),
            min_items=max(self.min_items, other.min_items),
            max_items=_least(self.max_items, other.max_items),
            is_unique=self.is_unique or other.is_unique,
            contained=distinct(self.contained + other.contained),
            layers=distinct(self.layers + other.layers),
            required=distinct(self.required + other.required),
            absent=self.absent | other.absent,
            names=distinct(self.names + other.names),
            min_names=max(self.min_names, other.min_names),
            max_names=_least(self.max_names, other.max_names),
            paths={**self.paths, **other.paths},
        )
        return met.narrowed()

    def narrowed(self) -> Facts | None:
        """Without types and values that are plainly out; None if nothing is left. Pure."""
        types = self.types - {kind for kind in self.types if self._is_out(kind)}
        values = self.values
        if values is not None:
            banned = {key_of(one) for one in self.banned}
            values = tuple(
                one for one in values if type_of(one) in types and key_of(one) not in banned
            )
            types &= frozenset(map(type_of, values))
        return replace(self, types=types, values=values) if types else None

    def _is_out(self, kind: str) -> bool:
        if kind in ("null", "boolean"):
            size = 1 if kind == "null" else 2
            return len({one for one in self.banned if type_of(one) == kind}) == size
        if kind in ("integer", "fraction"):
            return self._has_no_number(kind)
        counts = {
            "string": (self.min_length, self.max_length),
            "array": (self.min_items, self.max_items),
            "object": (max(self.min_names, len(self.required)), self.max_names),
        }
        is_missing = kind == "object" and not self.absent.isdisjoint(self.required)
        is_full = kind == "array" and any(_is_crossed(*one[1:]) for one in self.contained)
        return is_missing or is_full or _is_crossed(*counts[kind])

    def _has_no_number(self, kind: str) -> bool:
        if kind == "fraction" and any(step.denominator == 1 for step in self.steps):
            return True
        if self.low is None or self.high is None:
            return False
        (low, is_above), (high, is_below) = self.low, self.high
        if kind == "integer":
            first = math.floor(low) + 1 if is_above else math.ceil(low)
            last = math.ceil(high) - 1 if is_below else math.floor(high)
            return first > last
        return low > high or (low == high and (is_above or is_below))


def join(*parts: Place | Sequence[Place] | None) -> Conj:
    """All the places as one; what allows anything is left out. Pure."""
    found: dict[Place, None] = {}
    for part in parts:
        for place in (part,) if isinstance(part, Place) else part or ():
            if not (place.schema is True or place.schema == {}) or place.is_negated:
                found[place] = None
    return tuple(found)


def type_of(value: Any) -> str:  # noqa: ANN401 - parsed JSON
    """Which of the seven types a JSON value has. Pure."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if value == int(value) else "fraction"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def key_of(value: Any) -> Any:  # noqa: ANN401
    """Something hashable that is equal exactly for equal JSON values. Pure."""
    if isinstance(value, bool) or value is None:
        return (str(value),)
    if isinstance(value, Mapping):
        return ("object", frozenset((name, key_of(one)) for name, one in value.items()))
    if isinstance(value, list):
        return ("array", *map(key_of, value))
    return value


def _meet_values(
    one: tuple[Any, ...] | None, two: tuple[Any, ...] | None
) -> tuple[Any, ...] | None:
    if one is None or two is None:
        return two if one is None else one
    kept = {key_of(value) for value in two}
    return tuple(value for value in one if key_of(value) in kept)


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Each value once, in order; JSON's equality for JSON values. Pure."""
    if len(values) < 2:
        return values
    found: list[Any] = []
    seen: set[Any] = set()
    for value in values:
        key = key_of(value)
        if key not in seen:
            seen.add(key)
            found.append(value)
    return tuple(found)


def _least(one: int | None, two: int | None) -> int | None:
    if one is None or two is None:
        return two if one is None else one
    return min(one, two)


def _is_crossed(low: int, high: int | None) -> bool:
    return high is not None and low > high
