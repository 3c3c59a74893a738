r"""An automaton as it is drawn: states where something is decided, and the ways between them.

(1) -- c|at",  --> (2)     "c" is chosen, `at",` is forced after it: one way, five bytes
(1) -- d|og",  --> (2)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mmserve.constrained.automaton import Automaton, Edge, byte_table

__all__ = ["MAX_COUNTED", "Counts", "Graph", "Place", "Route", "graph_of"]

MAX_COUNTED = 4_000
"""States that are said in full to count them, at 0.1 ms each."""
_MAX_ROUTES = 12
_MAX_CHAIN = 64
_MAX_EXPLORED = 2_000
_END = -1
_LETTER = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[nrt])|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Route:
    """A way on.

    Args:
        chosen: the characters of which one comes first, in words; "" if nothing is chosen.
        forced: the text that must follow.
        target: number of the place after it; 0 if that is not drawn.
    """

    chosen: str
    forced: str
    target: int


@dataclass(frozen=True, slots=True)
class Place:
    """A state that is drawn.

    Args:
        number: from 1, which is the start.
        num_alike: so many states in a row are one place, each leading to the next one as the
            last leads on: the turns of a counted repeat.
        may_end: whether a text may end there.
        routes: the ways on that are drawn.
        num_hidden: those that are not.
    """

    number: int
    num_alike: int
    may_end: bool
    routes: tuple[Route, ...]
    num_hidden: int


@dataclass(frozen=True, slots=True)
class Counts:
    """States and edges of the smallest automaton over bytes, and once chains are one edge."""

    num_states: int
    num_edges: int
    num_kept_states: int
    num_kept_edges: int


@dataclass(frozen=True, slots=True)
class Graph:
    """The drawn part of an automaton.

    Args:
        places: in the order of their numbers.
        counts: of the whole; None if it is too large to be counted.
        is_whole: whether every place is drawn.
    """

    places: tuple[Place, ...]
    counts: Counts | None
    is_whole: bool


def graph_of(automaton: Automaton, max_places: int) -> Graph:
    """At most so many places, those near the start first. Pure. Cost: up to 0.5 s."""
    states, is_all = _explore(automaton)
    runs = _runs(states)
    numbers = {automaton.start: 1}
    todo = [automaton.start]
    places: list[Place] = []
    for first in todo:  # grows while it is read
        run = runs.get(first, [first])
        routes = states[run[-1]].routes if run[-1] in states else ()
        for route in routes:
            if route.target not in numbers and len(todo) < max_places:
                todo.append(route.target)
                numbers[route.target] = len(todo)
        drawn = tuple(
            Route(one.chosen, one.forced, numbers.get(one.target, 0)) for one in routes
        )
        state = states.get(first)
        num_hidden = 0 if state is None else state.num_hidden
        may_end = state is None or state.may_end
        places.append(Place(numbers[first], len(run), may_end, drawn, num_hidden))
    is_whole = is_all and all(
        not place.num_hidden and all(route.target for route in place.routes) for place in places
    )
    return Graph(tuple(places), _count(automaton), is_whole)


@dataclass(frozen=True, slots=True)
class _State:
    """A state where something is decided; targets are states."""

    routes: tuple[Route, ...]
    num_hidden: int
    may_end: bool

    def shape(self, following: int) -> object:
        """What two states have in common that do the same, but for going on."""
        routes = [
            (one.chosen, one.forced, one.target if one.target != following else None)
            for one in self.routes
        ]
        return routes, self.num_hidden, self.may_end


def _explore(automaton: Automaton) -> tuple[dict[int, _State], bool]:
    """States in the order of their distance from the start, without `_END`; whether all."""
    found: dict[int, _State] = {}
    todo = [automaton.start]
    known = {automaton.start, _END}
    for state in todo:  # grows while it is read
        if len(found) == _MAX_EXPLORED:
            return found, False
        routes, num_hidden = _ways_on(automaton, state)
        found[state] = _State(routes, num_hidden, automaton.is_accepting(state))
        fresh = dict.fromkeys(one.target for one in routes if one.target not in known)
        todo += fresh
        known.update(fresh)
    return found, True


def _runs(states: dict[int, _State]) -> dict[int, list[int]]:
    """Rows of states that do the same but for going on, by their first."""
    sources: dict[int, set[int]] = {}
    for state, one in states.items():
        for route in one.routes:
            sources.setdefault(route.target, set()).add(state)
    after = {}
    for state, one in states.items():
        for target in dict.fromkeys(route.target for route in one.routes):
            if (
                target in states
                and sources[target] == {state}
                and _alike(states, state, target)
            ):
                after[state] = target
                break
    inner = set(after.values())
    runs: dict[int, list[int]] = {}
    for state in states:
        if state in after and state not in inner:
            run = runs[state] = [state]
            while run[-1] in after:
                run.append(after[run[-1]])
    return runs


def _alike(states: dict[int, _State], state: int, target: int) -> bool:
    """Whether two states do the same, the one by going on to the other."""
    shape = states[state].shape(target)
    aheads = [route.target for route in states[target].routes if route.target != target]
    return any(states[target].shape(ahead) == shape for ahead in aheads)


def _ways_on(automaton: Automaton, state: int) -> tuple[tuple[Route, ...], int]:
    """The ways on, with states as targets; and how many more there are."""
    edges = automaton.edges(state)
    if len(edges) == 1 and _is_inside(automaton, state):
        return (Route("", _bare(edges[0].label), _named(automaton, edges[0].target)),), 0
    shown = [_follow(automaton, edge) for edge in edges[:_MAX_ROUTES]]
    return tuple(shown), len(edges) - len(shown)


def _follow(automaton: Automaton, edge: Edge) -> Route:
    """An edge and the chain behind it."""
    chosen, forced = _parts(edge)
    target = edge.target
    for _ in range(_MAX_CHAIN):
        ahead = automaton.edges(target) if _is_inside(automaton, target) else ()
        if len(ahead) != 1:
            break
        forced += _bare(ahead[0].label)
        target = ahead[0].target
    return Route(chosen, forced, _named(automaton, target))


def _is_inside(automaton: Automaton, state: int) -> bool:
    """Whether the state is inside of a chain."""
    return not automaton.is_accepting(state) and bool(automaton.forced(state))


def _named(automaton: Automaton, state: int) -> int:
    """The state, or `_END` for all where nothing may follow."""
    return _END if automaton.is_final(state) else state


def _parts(edge: Edge) -> tuple[str, str]:
    if not edge.label.startswith('"'):
        return (r"[^\n]" if edge.label == "." else edge.label), ""
    text = _bare(edge.label)
    first = _LETTER.match(text)
    end = first.end() if first else 0
    return '" "' if text[:end] == " " else text[:end], text[end:]


def _bare(label: str) -> str:
    return label[1:-1] if label.startswith('"') else label


def _count(automaton: Automaton) -> Counts | None:
    table = byte_table(automaton, MAX_COUNTED)
    return None if table is None else Counts(table.num_states, table.num_edges, *table.num_kept)
