"""Writes a graph as a plain schema: only words that llguidance enforces, one definition a node.

node        anyOf of its alternatives, each of one type
edge        $ref to the node's definition; scalars stand where they are used
"""

from __future__ import annotations

from typing import Any

from mmserve.constrained.schemas.facts import Conj, Facts
from mmserve.constrained.schemas.graph import Graph, least_items
from mmserve.constrained.schemas.numbers import write_numbers
from mmserve.constrained.schemas.objects import write_objects
from mmserve.constrained.schemas.refusal import refuse
from mmserve.constrained.schemas.uniques import is_endless

__all__ = ["write_schema"]

MOST_PATTERNS = 6
"""Patterns that one string may have to match: work on them may double with each."""
_MAX_LENGTH = 1_000_000
_MAX_ITEMS = 100_000
_MAX_SUBSETS = 256
_MAX_PARTS = 12_000
"""Values inside of listed objects and arrays; each is a piece of grammar of some kilobytes."""
_CONTAINERS = frozenset(("array", "object"))
_CONTROLS = frozenset(chr(code) for code in (*range(32), 127)) - frozenset("\b\t\n\f\r")

Plain = dict[str, Any] | bool


def write_schema(graph: Graph) -> Plain:
    """The plain schema of a graph whose root is alive.

    Raises:
        ConstraintRefused: something cannot be enforced.

    Pure.
    """
    return _Writer(graph).write()


class _Writer:
    """Holds the definitions while they are written."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._numbers: dict[Conj, int] = {}
        self._waiting: list[Conj] = []
        self._num_parts = 0

    def write(self) -> Plain:
        root = self._node(self._graph.root)
        definitions: dict[str, Plain] = {}
        while self._waiting:
            places = self._waiting.pop()
            definitions[str(self._numbers[places])] = self._node(places)
        if isinstance(root, bool) or not definitions:
            return root
        return {**root, "$defs": definitions}

    def edge(self, places: Conj | None) -> Plain:
        """The schema of a child; False if nothing may stand there."""
        if places is None or not self._graph.is_alive(places):
            return False
        if not places:
            return True
        ways = self._graph.ways(places)
        if len(ways) == 1 and ways[0].is_open:
            return True
        if not any(way.types & _CONTAINERS and way.values is None for way in ways):
            return self._node(places)
        if places not in self._numbers:
            self._numbers[places] = len(self._numbers)
            self._waiting.append(places)
        return {"$ref": f"#/$defs/{self._numbers[places]}"}

    def _node(self, places: Conj) -> Plain:
        if not places:
            return {}
        found: list[Plain] = []
        for facts in self._graph.ways(places):
            if facts.is_open:
                return {}
            found += self._alternatives(facts)
        if not found:
            where = places[0].path
            refuse("$schema", where, "allows nothing that can be written", "unsatisfiable")
        if len(found) == 1 and isinstance(found[0], dict):
            return found[0]
        return {"anyOf": found}

    def _alternatives(self, facts: Facts) -> list[Plain]:
        if facts.values is not None:
            listed = [one for one in facts.values if isinstance(one, dict | list)]
            self._num_parts += sum(map(_num_parts, listed))
            if self._num_parts > _MAX_PARTS:
                path = facts.paths.get("enum", "")
                refuse("enum", path, "lists too many objects and arrays", "too_large")
            return [{"enum": [_exact(one, facts) for one in facts.values]}]
        kinds = self._graph.kinds(facts)
        found: list[Plain] = []
        if "null" in kinds:
            found.append({"type": "null"})
        if "boolean" in kinds:
            banned = [one for one in facts.banned if isinstance(one, bool)]
            found.append({"enum": [not banned[0]]} if banned else {"type": "boolean"})
        if kinds & {"integer", "fraction"}:
            found += write_numbers(facts)
        if "string" in kinds:
            found.append(_string(facts))
        if "array" in kinds:
            found += self._arrays(facts)
        if "object" in kinds:
            found += write_objects(self._graph, facts, self.edge)
        return found

    def _arrays(self, facts: Facts) -> list[Plain]:
        *first, rest = self._graph.items(facts)
        least, most = least_items(facts), facts.max_items
        alive = [self._graph.is_alive(one) for one in first]
        if not all(alive):
            first = first[: alive.index(False)]
            most = len(first)
        elif not self._graph.is_alive(rest):
            most = len(first) if most is None else min(len(first), most)
        if facts.is_unique and (most is None or most > 1):
            few = self._few_values(first, rest)
            if few is not None:
                return self._unique(facts, few, (least, most))
            if not all(is_endless(self._graph, one) for one in (*first, rest)):
                path = facts.paths.get("uniqueItems", "")
                refuse("uniqueItems", path, "cannot be enforced for such items", "unsupported")
        found: dict[str, Any] = {"type": "array"}
        if first:
            found["prefixItems"] = [self.edge(one) for one in first]
        items = False if most is not None and most <= len(first) else self.edge(rest)
        if items is not True:
            found["items"] = items
        if least:
            found["minItems"] = least
        if most is not None:
            found["maxItems"] = min(most, _MAX_ITEMS)
        return [found]

    def _few_values(self, first: list[Conj], rest: Conj) -> list[Any] | None:
        """The values that items may have, if they are few."""
        ways = self._graph.ways(rest) if rest and not first else []
        values = [one for way in ways for one in way.values or ()]
        is_open = not ways or any(way.values is None for way in ways)
        return None if is_open or 2 ** len(values) > _MAX_SUBSETS else values

    def _unique(
        self, facts: Facts, values: list[Any], count: tuple[int, int | None]
    ) -> list[Plain]:
        """Arrays of few values, each at most once, in the order in which they are listed."""
        least, most = count
        subsets: list[list[Any]] = [[]]
        for value in values:
            subsets += [[*one, _exact(value, facts)] for one in subsets]
        kept = [one for one in subsets if least <= len(one) <= (most or len(values))]
        return [{"enum": kept}] if kept else []


def _string(facts: Facts) -> Plain:
    found: dict[str, Any] = {"type": "string"}
    if facts.min_length:
        if facts.min_length > _MAX_LENGTH:
            path = facts.paths.get("minLength", "")
            refuse("minLength", path, f"must be at most {_MAX_LENGTH}", "too_large")
        found["minLength"] = facts.min_length
    if facts.max_length is not None:
        found["maxLength"] = min(facts.max_length, _MAX_LENGTH)
    patterns = [f"^(?:{text.pattern})$" for text in facts.texts]
    banned = [one for one in facts.banned if isinstance(one, str)]
    if banned:
        patterns.append(f"^(?:{_none_of(banned)})$")
    if len(patterns) > MOST_PATTERNS:
        path = facts.paths.get("pattern", "")
        refuse("pattern", path, f"is one of more than {MOST_PATTERNS} at once", "too_large")
    if patterns:
        found["pattern"] = patterns[0]
    if len(patterns) > 1:
        found["allOf"] = [{"type": "string", "pattern": one} for one in patterns[1:]]
    return found


def _none_of(texts: list[str]) -> str:
    """A pattern for every text but these."""
    firsts = dict.fromkeys(text[0] for text in texts if text)
    others = "".join(f"\\x{{{ord(one):x}}}" for one in firsts)
    branches = [f"(?s:[^{others}].*)" if others else "(?s:..*)"]
    if "" not in texts:
        branches.append("")
    for first in firsts:
        rest = [text[1:] for text in texts if text[:1] == first]
        branches.append(f"\\x{{{ord(first):x}}}(?:{_none_of(rest)})")
    return "|".join(branches)


def _num_parts(value: Any) -> int:  # noqa: ANN401 - parsed JSON
    if isinstance(value, dict):
        return 1 + sum(map(_num_parts, value.values()))
    return 1 + sum(map(_num_parts, value)) if isinstance(value, list) else 1


def _exact(value: Any, facts: Facts) -> Any:  # noqa: ANN401 - parsed JSON
    """A listed value as it can be written: whole numbers without a fraction."""
    path = facts.paths.get("enum", "")
    if isinstance(value, dict):
        return {_exact(name, facts): _exact(one, facts) for name, one in value.items()}
    if isinstance(value, list):
        return [_exact(one, facts) for one in value]
    if isinstance(value, str) and not _CONTROLS.isdisjoint(value):
        refuse("enum", path, "holds a control character, which is never written", "unsupported")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if abs(value) > 2**53:
        refuse("enum", path, "holds a number above 2**53", "inexact")
    return int(value) if value == int(value) else value
