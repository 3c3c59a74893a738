"""Objects as plain schemas, with how many properties they have.

llguidance counts properties only where all listed ones are required. Elsewhere the choice of
listed ones is written out:

    properties a, b; minProperties 1   ->   a required  |  b required, without a  |  only others
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from mmserve.constrained.schemas.facts import Conj, Facts
from mmserve.constrained.schemas.graph import Graph
from mmserve.constrained.schemas.names import NameClasses
from mmserve.constrained.schemas.refusal import refuse

__all__ = ["write_objects"]

_MAX_CHOICES = 64

Plain = dict[str, Any] | bool
Edge = Callable[[Conj | None], Plain]


def write_objects(graph: Graph, facts: Facts, edge: Edge) -> list[Plain]:
    """Plain schemas of the objects with these facts; one, unless properties are counted.

    Raises:
        ConstraintRefused: properties are counted in a way that cannot be enforced.

    Pure.
    """
    names = graph.classes(facts)
    required = facts.required
    optional = [
        name
        for name, places in names.named.items()
        if name not in required and places is not None and graph.is_alive(places)
    ]
    is_open = graph.has_other_names(names)
    least = max(0, facts.min_names - len(required))
    most = None if facts.max_names is None else facts.max_names - len(required)
    if most is not None and not is_open and most >= len(optional):
        most = None
    if least == 0 and (most is None or (most == 0 and not optional)):
        closed = most == 0
        return [_object(names, required, optional, edge, is_closed=closed)]
    found: list[Plain] = []
    for chosen, may_follow, others in _choices(facts, optional, (least, most), is_open=is_open):
        written = _object(
            names, (*required, *chosen), may_follow, edge, is_closed=others == (0, 0)
        )
        if others is not None and others != (0, 0):
            count = len(required) + len(chosen)
            fewest, largest = others
            if fewest:
                written["minProperties"] = count + fewest
            if largest is not None:
                written["maxProperties"] = count + largest
        found.append(written)
    return found


_Choice = tuple[Sequence[str], Sequence[str], tuple[int, int | None] | None]
"""Listed names that come, those that may, and how many others (None: any number)."""


def _choices(
    facts: Facts, optional: list[str], count: tuple[int, int | None], *, is_open: bool
) -> list[_Choice]:
    least, most = count
    found: list[_Choice] = []
    if least == 1 and most is None:
        for order, name in enumerate(optional):
            found.append(((name,), optional[order + 1 :], None))
        if is_open:
            found.append(((), (), (1, None)))
    elif not optional:
        found.append(((), (), (least, most)))
    else:
        largest = len(optional) if most is None else min(most, len(optional))
        for size in range(largest + 1):
            fewest = max(0, least - size)
            left = None if most is None else most - size
            if not is_open and fewest:
                continue
            others = (fewest, left) if is_open else (0, 0)
            found += [(one, (), others) for one in itertools.combinations(optional, size)]
            if len(found) > _MAX_CHOICES:
                break
    keyword = "minProperties" if least else "maxProperties"
    path = facts.paths.get(keyword, "")
    if len(found) > _MAX_CHOICES:
        refuse(keyword, path, "leaves too many choices of properties", "too_large")
    if any(others is not None and others[0] > 1 for _, _, others in found):
        what = "asks for several properties that are not listed; they might repeat"
        refuse(keyword, path, what, "unsupported")
    return found


def _object(
    names: NameClasses,
    required: Sequence[str],
    optional: Sequence[str],
    edge: Edge,
    *,
    is_closed: bool,
) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object"}
    kept = {*required, *optional}
    rest = False if is_closed else edge(names.rest)
    patterns = (
        {}
        if is_closed
        else {f"^(?:{pattern})$": edge(places) for pattern, places in names.patterns}
    )
    has_others = rest is not False or any(one is not False for one in patterns.values())
    properties = {
        name: edge(places) if name in kept else False
        for name, places in names.named.items()
        if name in kept or has_others
    }
    if properties:
        found["properties"] = properties
    if patterns:
        found["patternProperties"] = patterns
    if rest is not True:
        found["additionalProperties"] = rest
    if required:
        found["required"] = list(required)
    return found
