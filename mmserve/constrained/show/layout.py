r"""Where an automaton's places and ways stand in a picture: columns from left to right.

    place   ways          place   ways              a way that skips columns keeps a lane free
    (1) --- [c]--------\
        \-- [d][og",] -- (2) --- [\d] to 1         one that leads back, or to another band,
                                                    says where it leads

Columns that do not fit side by side go on in the next band, below. It begins with the places
that the band before ends with.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mmserve.constrained.show.graph import Graph, Place, Route

__all__ = ["Layout", "Spot", "lay_out"]


@dataclass(slots=True, eq=False)
class Spot:
    """A place, a way, or a lane kept free for a way that passes; `row` in its column.

    Args:
        place: what stands there, if it is a place.
        route: what stands there, if it is a way.
        after: the spot in the next column that a line leads to, if there is one.
        from_spots: the spots of the column before with a line to here.
    """

    place: Place | None = None
    route: Route | None = None
    row: int = 0
    after: list[Spot] = field(default_factory=list)
    from_spots: list[Spot] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of places and of ways by turns, band by band."""

    bands: tuple[tuple[tuple[Spot, ...], ...], ...]


def lay_out(graph: Graph, width_of: Callable[[Sequence[Route]], float], room: float) -> Layout:
    """Give everything a spot. Pure.

    Args:
        graph: what is drawn.
        width_of: pixels of a column of places and the column of these ways behind it.
        room: pixels of a band, without a last column of places.
    """
    layers = _layers(graph)
    by_layer: dict[int, list[Place]] = defaultdict(list)
    for place in graph.places:
        by_layer[layers[place.number]].append(place)
    bands: list[list[int]] = [[]]
    used = 0.0
    for layer in sorted(by_layer):
        width = width_of([route for place in by_layer[layer] for route in place.routes])
        if bands[-1] and used + width > room:
            bands.append([])
            used = 0.0
        bands[-1].append(layer)
        used += width
    ends = [band[0] for band in bands[1:]]
    return Layout(
        tuple(
            _columns(band, end, by_layer, layers)
            for band, end in zip(bands, [*ends, None], strict=True)
        )
    )


def _layers(graph: Graph) -> dict[int, int]:
    """The column of each place: behind all that lead to it, but for ways that lead back."""
    ahead = _ahead(graph)
    num_before = {place.number: 0 for place in graph.places}
    for targets in ahead.values():
        for target in targets:
            num_before[target] += 1
    layers = dict.fromkeys(num_before, 0)
    todo = [number for number, count in num_before.items() if not count]
    for number in todo:  # grows while it is read
        for target in ahead[number]:
            layers[target] = max(layers[target], layers[number] + 1)
            num_before[target] -= 1
            if not num_before[target]:
                todo.append(target)
    return layers


def _ahead(graph: Graph) -> dict[int, list[int]]:
    """Where ways lead from each place, without those that close a circle."""
    targets = {
        place.number: [route.target for route in place.routes if route.target]
        for place in graph.places
    }
    ahead: dict[int, list[int]] = {number: [] for number in targets}
    done: set[int] = set()
    path: list[tuple[int, int]] = [(1, 0)]
    on_path = {1}
    while path:
        number, order = path.pop()
        if order == len(targets[number]):
            on_path.discard(number)
            done.add(number)
            continue
        path.append((number, order + 1))
        target = targets[number][order]
        if target in on_path:
            continue
        ahead[number].append(target)
        if target not in done:
            on_path.add(target)
            path.append((target, 0))
    return ahead


def _columns(
    band: Sequence[int],
    end: int | None,
    by_layer: Mapping[int, Sequence[Place]],
    layers: Mapping[int, int],
) -> tuple[tuple[Spot, ...], ...]:
    """The columns of one band, from left to right; of layer `end` only what is reached."""
    columns: list[tuple[Spot, ...]] = []
    passing: list[tuple[Spot, int]] = []  # spots of the column before, and where they lead
    last = band[-1] if end is None else end
    for layer in (*band, *(() if end is None else (end,))):
        spots = {place.number: Spot(place) for place in by_layer[layer]}
        lanes: list[tuple[Spot, int]] = []
        for spot, target in passing:
            goal = spots.get(target)
            if goal is None:
                goal = Spot()
                lanes.append((goal, target))
            _join(spot, goal)
        reached = [spot for spot in spots.values() if spot.from_spots or layer != end]
        column = _placed([*reached, *(spot for spot, _ in lanes)])
        ways, passing = ([], []) if layer == end else _ways(column, dict(lanes), last, layers)
        columns += [one for one in (column, _placed(ways)) if one]
    return tuple(columns)


def _ways(
    column: Sequence[Spot], lanes: Mapping[Spot, int], last: int, layers: Mapping[int, int]
) -> tuple[list[Spot], list[tuple[Spot, int]]]:
    """The spots behind a column of places, and which of them lead to a place further on."""
    found: list[Spot] = []
    passing: list[tuple[Spot, int]] = []
    for spot in column:
        routes = () if spot.place is None else spot.place.routes
        for route in routes:
            way = Spot(route=route)
            _join(spot, way)
            found.append(way)
            layer = layers.get(route.target, -1)
            if spot.place is not None and layers[spot.place.number] < layer <= last:
                passing.append((way, route.target))
        if spot in lanes:
            lane = Spot()
            _join(spot, lane)
            found.append(lane)
            passing.append((lane, lanes[spot]))
    return found, passing


def _join(spot: Spot, after: Spot) -> None:
    spot.after.append(after)
    after.from_spots.append(spot)


def _placed(spots: Sequence[Spot]) -> tuple[Spot, ...]:
    """The spots in the order of what leads to them, with their rows."""
    ordered = sorted(spots, key=_middle)
    for row, spot in enumerate(ordered):
        spot.row = row
    return tuple(ordered)


def _middle(spot: Spot) -> float:
    rows = [one.row for one in spot.from_spots]
    return sum(rows) / len(rows) if rows else 0.0
