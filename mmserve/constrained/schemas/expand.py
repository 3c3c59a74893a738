"""The alternatives of a place: every way to satisfy a subschema, with what it combines.

    allOf [A, B]       each of A's with each of B's
    anyOf [A, B]       A's, then B's
    oneOf [A, B]       A's that are surely not B's, and the other way round
    not A              what breaks one keyword of A, as far as facts can say it
    if A then B else C A's with B's, and those of not A with C's

Where a negation cannot be said whole, fewer values are let through, never more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from mmserve.constrained.schemas.check import check_form
from mmserve.constrained.schemas.dialects import Draft, is_known
from mmserve.constrained.schemas.document import Document, Place
from mmserve.constrained.schemas.facts import (
    Conj,
    Facts,
    ItemLayer,
    NameLayer,
    distinct,
    join,
    key_of,
)
from mmserve.constrained.schemas.matching import holds, may_hold
from mmserve.constrained.schemas.negate import broken, is_unclear
from mmserve.constrained.schemas.plain import plain_facts
from mmserve.constrained.schemas.refusal import refuse
from mmserve.constrained.schemas.texts import is_empty_text
from mmserve.core import ConstraintRefused

__all__ = ["NOTHING", "Expander", "child", "item"]

_MAX_ALTERNATIVES = 256
_MAX_MEETS = 8_000
_MAX_TEXT_PROOFS = 1_000
_MAX_STACK = 200
_MAX_PROOF_DEPTH = 4
_OLD = ("divisibleBy", "disallow", "extends")
_REFERENCES = ("$ref", "$recursiveRef", "$dynamicRef")
_MAY_BE_EMPTY = frozenset(("string", "array", "object"))
_TRUE = Place("#true")
_FALSE = Place("#false", schema=False)
NOTHING: Conj = (_FALSE,)
"""What no value satisfies."""

Alternatives = tuple[Facts, ...]


class Expander:
    """Alternatives of places of one document, each found once.

    Raises:
        ConstraintRefused: a keyword of the document has a value that it cannot have.

    Changes: only what it remembers.
    """

    def __init__(self, document: Document) -> None:
        self.num_narrowings = 0
        """Grows when alternatives let fewer values through than the schema does; those are
        no proof that a value is not another one's."""
        self._narrowed: set[Place] = set()
        self._document = document
        self._checked_paths: set[str] = set()
        check_form(document.root, self._checked_paths)
        self._found: dict[Place, Alternatives] = {}
        self._targets: dict[Place, Place] = {}
        self._empty: dict[Conj, bool] = {}
        self._keys: dict[Conj, frozenset[Any] | None] = {}
        self._stack: set[Place] = set()
        self._num_meets = 0
        self._num_text_proofs = 0

    def together(self, places: Conj) -> Alternatives:
        """The ways to satisfy all the places at once.

        Raises:
            ConstraintRefused: a keyword there cannot be enforced, or there are too many ways.
        """
        found: Alternatives = (Facts(),)
        for place in places:
            found = self._product(found, self.of(place), place)
        return found

    def settled(self, places: Conj) -> Conj:
        """The same places, those that only refer to another one replaced by it.

        Raises:
            ConstraintRefused: a reference names nothing.
        """
        return join(*(self._referred(place) for place in places))

    def _referred(self, place: Place) -> Place:
        found = self._targets.get(place)
        if found is None:
            found = place
            for _ in range(_MAX_STACK):
                if found.is_negated or not _is_reference(found):
                    break
                found = self.target(found, "$ref")
            self._targets[place] = found
        return found

    def of(self, place: Place) -> Alternatives:
        """The ways to satisfy one place. Raises as `together`."""
        found = self._found.get(place)
        if found is not None:
            self.num_narrowings += place in self._narrowed
            return found
        if place in self._stack:
            refuse("$ref", place.path, "leads in circles: no value ever ends", "unsatisfiable")
        if len(self._stack) > _MAX_STACK:
            refuse("$ref", place.path, "is nested too deeply", "too_large")
        before = self.num_narrowings
        self._stack.add(place)
        try:
            found = self._negative(place) if place.is_negated else self._positive(place)
        finally:
            self._stack.discard(place)
        self._found[place] = found
        if self.num_narrowings > before:
            self._narrowed.add(place)
        return found

    def narrow(self) -> None:
        """Note that fewer values were let through than had to be. Changes: the count of it."""
        self.num_narrowings += 1

    def is_surely_empty(self, facts: Facts, depth: int = 0) -> bool:
        """Whether no value has these facts, as far as a short look can tell."""
        if depth > _MAX_PROOF_DEPTH or not facts.types <= _MAY_BE_EMPTY:
            return False
        return all(
            self._is_empty_text(facts)
            if kind == "string"
            else any(self._is_empty(part, depth) for part in _needed(facts, kind))
            for kind in facts.types
        )

    def _is_empty_text(self, facts: Facts) -> bool:
        self._num_text_proofs += len(facts.texts) > 1
        return self._num_text_proofs <= _MAX_TEXT_PROOFS and is_empty_text(facts)

    def _is_empty(self, places: Conj, depth: int) -> bool:
        known = self._empty.get(places)
        if known is not None:
            return known
        before = self.num_narrowings
        try:
            found = self.together(places)
        except ConstraintRefused:
            return False
        is_empty = self.num_narrowings == before and all(
            self.is_surely_empty(one, depth + 1) for one in found
        )
        if is_empty or depth == 0:
            self._empty[places] = is_empty
        return is_empty

    def _positive(self, place: Place) -> Alternatives:
        schema = place.schema
        if isinstance(schema, bool):
            return (Facts(),) if schema else ()
        if place.draft <= Draft.D7 and "$ref" in schema:
            return self.of(self.target(place, "$ref"))
        known = {
            keyword: value
            for keyword, value in schema.items()
            if is_known(keyword, place.draft)
        }
        for keyword in _OLD:
            if keyword in known:
                refuse(keyword, place.path, "belongs to an old draft", "unsupported")
        has_siblings = "$ref" in known and len(known) > 1 and place.draft is Draft.OPEN
        if has_siblings or any(is_unclear(place, keyword) for keyword in known):
            self.narrow()
        if "unevaluatedProperties" in known or "unevaluatedItems" in known:
            self.narrow()
        own = self._checked((plain_facts(place, known),))
        found: Alternatives = (Facts(),)
        first = "properties" if "properties" in known else next(iter(known), "")
        for keyword in known:
            if keyword == first:  # properties come in the order in which they are named
                found = self._product(found, own, place)
            for more in self._combined(place, keyword):
                found = self._product(found, more, place)
        return _evaluated(place, known, found)

    def _combined(self, place: Place, keyword: str) -> Iterable[Alternatives]:
        """What one keyword adds: each of these must be met too."""
        value = place.schema[keyword]
        if keyword in _REFERENCES:
            yield self.of(self.target(place, keyword))
        elif keyword == "allOf":
            yield from (self.of(place.below(keyword, order)) for order in range(len(value)))
        elif keyword == "anyOf":
            yield self._union(place.below(keyword, order) for order in range(len(value)))
        elif keyword == "oneOf":
            yield self._one_of(place)
        elif keyword == "not":
            yield self.of(place.below(keyword).negation())
        elif keyword == "if":
            yield self._conditional(place)
        elif keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            yield from (self._dependent(place, keyword, name) for name in value)

    def _union(self, places: Iterable[Place]) -> Alternatives:
        return _merged(tuple(facts for place in places for facts in self.of(place)))

    def _one_of(self, place: Place) -> Alternatives:
        branches = [place.below("oneOf", order) for order in range(len(place.schema["oneOf"]))]
        overlaps = [
            pair
            for pair in itertools.combinations(branches, 2)
            if not self._are_disjoint(*pair)
        ]
        found: list[Facts] = []
        for branch in branches:
            ways = self.of(branch)
            for one, two in overlaps:
                if branch in (one, two) and ways:
                    other = two if branch == one else one
                    ways = self._product(ways, self._not_also(place, other), place)
            found += ways
        return _merged(tuple(found))

    def _not_also(self, place: Place, other: Place) -> Alternatives:
        try:
            return self.of(other.negation())
        except ConstraintRefused as error:
            what = f"has branches that may both hold, and {error.message}"
            refuse("oneOf", place.path, what[:200], "unsupported")

    def _are_disjoint(self, one: Place, two: Place) -> bool:
        ways = self.of(one), self.of(two)
        if not self._narrowed.isdisjoint((one, two)):
            return False
        return all(self._never_meet(*pair) for pair in itertools.product(*ways))

    def _never_meet(self, one: Facts, two: Facts) -> bool:
        if one.types.isdisjoint(two.types) or self._are_told_apart(one, two):
            return True
        self._count_meet()
        met = one.meet(two)
        return met is None or self.is_surely_empty(met)

    def _are_told_apart(self, one: Facts, two: Facts) -> bool:
        """Whether a property that one of them asks for has other values in the other."""
        if one.types != {"object"} or two.types != {"object"}:
            return False
        for name in {*one.required, *two.required}:
            first = self._value_keys(child(one, name))
            second = self._value_keys(child(two, name))
            if first is not None and second is not None and first.isdisjoint(second):
                return True
        return False

    def _value_keys(self, places: Conj) -> frozenset[Any] | None:
        """The values that the places name, if they do nothing else."""
        if len(places) != 1 or places[0] in self._stack:
            return None
        found = self._keys.get(places)
        if found is None:
            try:
                ways = self.of(places[0])
            except ConstraintRefused:
                return None
            is_named = all(way.values is not None for way in ways)
            is_named = is_named and places[0] not in self._narrowed
            values = [key_of(one) for way in ways for one in way.values or ()]
            found = frozenset(values) if is_named else None
            self._keys[places] = found
        return found

    def _conditional(self, place: Place) -> Alternatives:
        schema = place.schema
        if "then" not in schema and "else" not in schema:
            return (Facts(),)
        condition = place.below("if")
        found: list[Facts] = []
        for keyword, side in (("then", condition), ("else", condition.negation())):
            ways = self.of(place.below(keyword)) if keyword in schema else (Facts(),)
            found += self._product(self.of(side), ways, place)
        return _merged(tuple(found))

    def _dependent(self, place: Place, keyword: str, name: str) -> Alternatives:
        value = place.schema[keyword][name]
        without = Facts(absent=frozenset((name,)))
        names = [value] if isinstance(value, str) else value
        if isinstance(names, list):
            needed: Alternatives = (
                Facts(types=frozenset(("object",)), required=(name, *names)),
            )
        else:
            wanted = Facts(types=frozenset(("object",)), required=(name,))
            ways = self.of(place.below(keyword, name))
            needed = self._product((wanted,), ways, place)
        return (without, *needed)

    def _negative(self, place: Place) -> Alternatives:
        schema = place.schema
        if isinstance(schema, bool):
            return () if schema else (Facts(),)
        if place.draft <= Draft.D7 and "$ref" in schema:
            return self.of(self.target(place, "$ref").negation())
        return self._checked(broken(self, place))

    def target(self, place: Place, keyword: str) -> Place:
        """What a reference names, which may lie where no schema is expected.

        Raises as `together`.
        """
        found = self._document.follow(place, keyword)
        check_form(found, self._checked_paths)
        return found

    def product(self, parts: Iterable[Alternatives], place: Place) -> Alternatives:
        """Each way of each part with each of the others. Raises as `together`."""
        found: Alternatives = (Facts(),)
        for part in parts:
            found = self._product(found, part, place)
        return found

    def _product(self, one: Alternatives, two: Alternatives, place: Place) -> Alternatives:
        if one == (Facts(),):
            return two
        found = []
        for first in one:
            for second in two:
                self._count_meet()
                met = first.meet(second)
                if met is not None:
                    found.append(met)
        return self._checked(tuple(found), place)

    def _checked(self, found: Sequence[Facts], place: Place | None = None) -> Alternatives:
        kept = _merged(tuple(one for one in found if one.types))
        if len(kept) > _MAX_ALTERNATIVES:
            path = place.path if place else ""
            refuse("anyOf", path, "has too many combinations", "too_large")
        return kept

    def _count_meet(self) -> None:
        self._num_meets += 1
        if self._num_meets > _MAX_MEETS:
            refuse("allOf", "", "has too many combinations", "too_large")


def _is_reference(place: Place) -> bool:
    """Whether a place says nothing but that another one holds."""
    schema = place.schema
    if isinstance(schema, bool) or "$ref" not in schema:
        return False
    return place.draft <= Draft.D7 or not any(
        is_known(keyword, place.draft) for keyword in schema if keyword != "$ref"
    )


def child(facts: Facts, name: str) -> Conj:
    """What the value of a property must satisfy. Pure."""
    found: list[Place | None] = [_FALSE] if name in facts.absent else []
    for layer in facts.layers:
        named = [layer.named[name]] if name in layer.named else []
        parts = named + [
            place for written, _, place in layer.patterns if may_hold(written, name)
        ]
        is_sure = named or any(holds(written, name) for written, _, _ in layer.patterns)
        found += parts if is_sure else [*parts, layer.rest]
    return join(*found)


def item(facts: Facts, order: int) -> Conj:
    """What an item must satisfy. Pure."""
    return join(*(layer.at(order) for layer in facts.items))


def _needed(facts: Facts, kind: str) -> list[Conj]:
    """What any value of the type must hold, if it is a container."""
    if kind == "object":
        return [child(facts, name) for name in facts.required]
    if kind == "array":
        return [item(facts, order) for order in range(min(facts.min_items, 8))]
    return []


def _merged(found: Alternatives) -> Alternatives:
    """Without repeats; alternatives that only name values become one."""
    kept: list[Facts] = []
    named: Facts | None = None
    order = 0
    for facts in found:
        if facts.is_open:
            return (facts,)
        if facts.values is not None and facts == Facts(types=facts.types, values=facts.values):
            if named is None:
                order, named = len(kept), facts
            else:
                types = named.types | facts.types
                values = (*(named.values or ()), *facts.values)
                named = replace(named, types=types, values=values)
        elif facts not in kept[-8:]:
            kept.append(facts)
    if named is not None:
        kept.insert(order, replace(named, values=distinct(named.values or ())))
    return tuple(kept)


def _evaluated(place: Place, known: dict[str, object], found: Alternatives) -> Alternatives:
    """With what holds for properties and items that no other keyword looked at."""
    if "unevaluatedProperties" in known:
        rest = place.below("unevaluatedProperties")
        found = tuple(_with_other_names(facts, rest) for facts in found)
    if "unevaluatedItems" in known:
        rest = place.below("unevaluatedItems")
        found = tuple(_with_other_items(facts, rest) for facts in found)
    return found


def _with_other_names(facts: Facts, rest: Place) -> Facts:
    layers = [layer for layer in facts.layers if not layer.is_silent]
    if any(layer.rest is not None for layer in layers):
        return facts
    named = {name: _TRUE for layer in layers for name in layer.named}
    patterns = {
        (written, pattern, _TRUE) for layer in layers for written, pattern, _ in layer.patterns
    }
    more = NameLayer(named, tuple(sorted(patterns, key=str)), rest)
    return replace(facts, layers=(*facts.layers, more))


def _with_other_items(facts: Facts, rest: Place) -> Facts:
    layers = [layer for layer in facts.items if not layer.is_silent]
    if any(layer.rest is not None for layer in layers):
        return facts
    count = max((len(layer.first) for layer in layers), default=0)
    return replace(facts, items=(*facts.items, ItemLayer((_TRUE,) * count, rest)))
