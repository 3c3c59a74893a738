"""Where in an answer arrays stand whose items must differ: a map to follow while it grows.

    {"tags": unique array}    position 0: object, tags -> 1;  position 1: array, unique

A position stands for all nodes that a value there may belong to, so an array that is unique in
one alternative is kept unique in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mmserve.constrained.schemas.facts import Conj, Facts
from mmserve.constrained.schemas.graph import Graph
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["NOWHERE", "Position", "find_uniques", "is_endless"]

NOWHERE = -1
"""The position of values that hold no unique array."""
_MAX_POSITIONS = 5_000
_MAX_DEPTH = 8
_ENOUGH_LENGTH = 8
_ENDLESS = re.compile(r"[*+]|\{[0-9]+(?:,[0-9]*)?\}")

_Nodes = frozenset[Conj]


@dataclass(frozen=True, slots=True)
class Position:
    """One value's place: whether it is a unique array, and the positions below it."""

    is_unique: bool
    names: Mapping[str, int]
    other_names: int
    items: tuple[int, ...]
    other_items: int


def find_uniques(graph: Graph) -> tuple[Position, ...]:
    """The map, the root first; empty if no array must be unique.

    Raises:
        ConstraintRefused: it would be too large.

    Pure.
    """
    if not any(facts.is_unique for ways in graph.nodes.values() for facts in ways):
        return ()
    numbers: dict[_Nodes, int] = {frozenset((graph.root,)): 0}
    waiting = [*numbers]
    found: list[Position] = []
    is_used = False
    while waiting:
        nodes = waiting.pop(0)
        if len(numbers) > _MAX_POSITIONS:
            refuse("uniqueItems", "", "stands in too many places", "too_large")
        ways = [facts for places in nodes for facts in _ways(graph, places)]
        below = _Below(graph, ways, numbers, waiting)
        position = below.position()
        is_used = is_used or position.is_unique
        found.append(position)
    return tuple(found) if is_used else ()


class _Below:
    """Numbers the positions below the alternatives of one."""

    def __init__(
        self,
        graph: Graph,
        ways: list[Facts],
        numbers: dict[_Nodes, int],
        waiting: list[_Nodes],
    ) -> None:
        self._graph = graph
        self._numbers = numbers
        self._waiting = waiting
        self._arrays = [one for one in ways if "array" in graph.kinds(one)]
        self._objects = [one for one in ways if "object" in graph.kinds(one)]

    def position(self) -> Position:
        items = [self._graph.items(facts) for facts in self._arrays]
        count = max(map(len, items), default=1) - 1
        names = dict.fromkeys(
            name for facts in self._objects for name in self._graph.classes(facts).named
        )
        is_unique = any(facts.is_unique for facts in self._arrays)
        for facts in self._arrays if is_unique else ():
            rest = self._graph.items(facts)[-1]
            if not facts.is_unique and not is_endless(self._graph, rest):
                path = facts.paths.get("type", "")
                what = "stands beside an array whose items may repeat"
                refuse("uniqueItems", path, what, "unsupported")
        return Position(
            is_unique=is_unique,
            names={name: self._number(self._named(name)) for name in names},
            other_names=self._number(self._named(None)),
            items=tuple(
                self._number(one[min(order, len(one) - 1)] for one in items)
                for order in range(count)
            ),
            other_items=self._number(one[-1] for one in items),
        )

    def _named(self, name: str | None) -> Iterator[Conj]:
        for facts in self._objects:
            classes = self._graph.classes(facts)
            if name is not None and name in classes.named:
                places = classes.named[name]
                yield from () if places is None else (places,)
            else:
                yield from (places for _, places in classes.patterns)
                yield from () if classes.rest is None else (classes.rest,)

    def _number(self, places: Iterator[Conj]) -> int:
        nodes = frozenset(one for one in places if one and self._graph.is_alive(one))
        if not nodes:
            return NOWHERE
        if nodes not in self._numbers:
            self._numbers[nodes] = len(self._numbers)
            self._waiting.append(nodes)
        return self._numbers[nodes]


def _ways(graph: Graph, places: Conj) -> Iterator[Facts]:
    for facts in graph.ways(places) if places else ():
        if facts.values is None and not facts.is_open:
            yield facts


def is_endless(graph: Graph, places: Conj, depth: int = 0) -> bool:
    """Whether a value can always be made another one by writing on. Pure."""
    if not places:
        return False
    return depth < _MAX_DEPTH and all(
        facts.values is None and all(_has_more(graph, facts, kind, depth) for kind in kinds)
        for facts in graph.ways(places)
        for kinds in (graph.kinds(facts),)
    )


def _has_more(graph: Graph, facts: Facts, kind: str, depth: int) -> bool:
    if kind == "string":
        is_long = facts.max_length is None or facts.max_length >= _ENOUGH_LENGTH
        return is_long and all(_ENDLESS.search(text.written) for text in facts.texts)
    if kind in ("integer", "fraction"):
        return facts.low is None or facts.high is None
    if kind == "array":
        rest = graph.items(facts)[-1]
        return facts.max_items is None and is_endless(graph, rest, depth + 1)
    if kind == "object":
        return facts.max_names is None and graph.has_other_names(graph.classes(facts))
    return False
