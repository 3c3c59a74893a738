"""The graph of a schema: which places one value must satisfy, and which of those have values.

    node  = the places that one value must satisfy at once, with their alternatives
    edges = what the items and properties of an alternative must satisfy

A node is alive if a value that ends satisfies it. Found from the leaves upwards, so that
references which only lead in circles stay dead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mmserve.constrained.schemas.document import Document
from mmserve.constrained.schemas.expand import Expander, item
from mmserve.constrained.schemas.facts import Conj, Facts, join, type_of
from mmserve.constrained.schemas.judge import satisfies, suits
from mmserve.constrained.schemas.names import NameClasses, name_classes
from mmserve.constrained.schemas.numbers import whole_numbers_inside, write_numbers
from mmserve.constrained.schemas.refusal import refuse
from mmserve.constrained.schemas.texts import excludes

__all__ = ["Graph"]

_MAX_NODES = 3_000
_ANY: Conj = ()


class Graph:
    """Nodes reached from the root, each with the alternatives that are alive.

    Raises:
        ConstraintRefused: something in reach cannot be enforced, or is too large.
    """

    def __init__(self, document: Document) -> None:
        self.expander = Expander(document)
        self.root = self.expander.settled(join(document.root))
        self.nodes: dict[Conj, tuple[Facts, ...]] = {}
        self._ways: dict[Conj, list[Facts]] = {}
        self._names: dict[int, NameClasses] = {}
        self._alive: set[Conj] = {_ANY}
        stack = [self.root]
        while stack:
            places = stack.pop()
            if places in self.nodes:
                continue
            if len(self.nodes) > _MAX_NODES:
                refuse("$schema", places[0].path, "has too many parts", "too_large")
            self.nodes[places] = self._settled(places)
            for facts in self.nodes[places]:
                stack += [one for one in self._children(facts) if one not in self.nodes]
        self._find_alive()

    def items(self, facts: Facts) -> list[Conj]:
        """What the items must satisfy, one by one, then what all further ones must. Pure."""
        return [self.expander.settled(places) for places in items_of(facts)]

    def is_alive(self, places: Conj) -> bool:
        """Whether a value that ends satisfies all the places. Pure."""
        return places in self._alive

    def ways(self, places: Conj) -> list[Facts]:
        """The alternatives of a node that are alive. Pure."""
        found = self._ways.get(places)
        if found is None:
            found = [facts for facts in self.nodes[places] if self.kinds(facts)]
            self._ways[places] = found
        return found

    def classes(self, facts: Facts) -> NameClasses:
        """The properties that an object with these facts may have. Pure."""
        return self._names[id(facts)]

    def _settled(self, places: Conj) -> tuple[Facts, ...]:
        """A node's alternatives as far as they can be enforced."""
        ways = [self._sound(facts) for facts in self.expander.together(places)]
        found = [facts for facts in ways if facts is not None]
        kept = tuple(facts for facts in found if facts.types)
        if len(kept) < len(found):
            self.expander.narrow()
            if not kept:
                path = found[0].paths.get("not", places[0].path)
                refuse("pattern", path, "cannot be negated", "unsupported")
        return kept

    def _sound(self, facts: Facts) -> Facts | None:
        """With the values that satisfy everything else alone, if values are named.

        None if there are none; without types if all that is left cannot be enforced.
        """
        if facts.values is not None:
            others = replace(facts, values=None)
            values = tuple(one for one in facts.values if suits(self.expander, one, others))
            if not values:
                return None
            return Facts(types=frozenset(map(type_of, values)), values=values)
        if "string" in facts.types and not all(excludes(facts, one) for one in facts.unlike):
            facts = replace(facts, types=facts.types - {"string"})
        if facts.types > {"fraction"} and whole_numbers_inside(facts) is None:
            self.expander.narrow()
            facts = replace(facts, types=facts.types - {"fraction"})
        if {"integer", "fraction"} & facts.types and not write_numbers(facts):
            facts = replace(facts, types=facts.types - {"integer", "fraction"})
            if not facts.types:
                return None
        if "object" in facts.types:
            facts = replace(facts)
            self._names[id(facts)] = name_classes(
                facts, lambda name: satisfies(self.expander, name, facts.names), self.expander
            )
        return facts

    def _children(self, facts: Facts) -> Iterator[Conj]:
        if facts.values is not None or facts.is_open:
            return
        if "array" in facts.types:
            yield from self.items(facts)
        if "object" in facts.types:
            names = self._names[id(facts)]
            yield from (places for places in names.named.values() if places is not None)
            yield from (places for _, places in names.patterns)
            if names.rest is not None:
                yield names.rest

    def _find_alive(self) -> None:
        is_new = True
        while is_new:
            is_new = False
            for places, ways in reversed(self.nodes.items()):
                if places not in self._alive and any(map(self.kinds, ways)):
                    self._alive.add(places)
                    is_new = True

    def kinds(self, facts: Facts) -> frozenset[str]:
        """The types of which a value with these facts may end. Pure."""
        if facts.values is not None:
            return facts.types
        dead = {
            kind
            for kind in facts.types
            if (kind == "array" and not self._has_array(facts))
            or (kind == "object" and not self._has_object(facts))
        }
        return facts.types - dead

    def _has_array(self, facts: Facts) -> bool:
        places = self.items(facts)
        least = least_items(facts)
        if facts.max_items is not None and least > facts.max_items:
            return False
        needed = places[:least]
        return all(one in self._alive for one in needed)

    def _has_object(self, facts: Facts) -> bool:
        names = self._names[id(facts)]
        if not all(names.named.get(one, names.rest) in self._alive for one in facts.required):
            return False
        num_named = sum(places in self._alive for places in names.named.values())
        return num_named >= facts.min_names or self.has_other_names(names)

    def has_other_names(self, names: NameClasses) -> bool:
        """Whether properties may come that are not listed. Pure."""
        return names.rest in self._alive or any(
            places in self._alive for _, places in names.patterns
        )


def items_of(facts: Facts) -> list[Conj]:
    """What the items must satisfy, one by one, then what all further ones must. Pure.

    Items that `contains` asks for come first.
    """
    wanted = [place for place, least, _ in facts.contained for _ in range(least)]
    count = max([len(wanted), *(len(layer.first) for layer in facts.items)])
    found = []
    for order in range(count + 1):
        parts = [wanted[order]] if order < len(wanted) else []
        start = 0
        for place, least, most in facts.contained:
            if most is not None and not start <= order < start + least:
                parts.append(place.negation())
            start += least
        found.append(join(*parts, item(facts, order)))
    return found


def least_items(facts: Facts) -> int:
    """How many items there are at least. Pure."""
    return max(facts.min_items, sum(least for _, least, _ in facts.contained))
