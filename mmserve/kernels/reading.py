"""Which queries read which slots together: the plan of shared-prefix attention, in numpy.

Rows are hung into a tree by their slots, as in the radix tree that gave them: an edge is a
segment, read once for all rows below it. Rows are put in depth-first order, so the queries of a
segment are consecutive places.

    positions  0 ......... 512 ......... 530
    row A      [ segment 0 ][ segment 1 ]          places 0 .. 17
    row B      [ segment 0 ][ segment 2 ]          places 18 .. 30

What a query sees is one range of positions, whatever the segments: [0, p + 1) if it is causal,
[p + 1 - window, p + 1) under a window, to the end of its range if it sees ahead. So a causal
triangle, a window and a two-way span are all the same mask: low <= position < high.

Source: cascade inference (FlashInfer, 2024) and Hydragen (2024); we find the shared runs from
the slots themselves, at any number of depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from mmserve.kernels.attention import QueryRow

__all__ = ["Segment", "StepReading", "plan_reading"]

MIN_SHARED = 16
"""Fewer shared slots are read by each row for itself."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Queries at places [first_place, end_place) read `slots`.

    Args:
        first_place: first query, in the order of the reading.
        end_place: behind the last query.
        first_position: position of the first slot in every row that reads the segment.
        slots: int64 [n], slots of positions [first_position, first_position + n).
        depth: how many segments each of its queries reads before this one.
    """

    first_place: int
    end_place: int
    first_position: int
    slots: NDArray[np.int64]
    depth: int

    @property
    def end_position(self) -> int:
        """Behind the position of the last slot."""
        return self.first_position + len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class StepReading:
    """The whole step: every (query, seen slot) pair is in exactly one segment.

    Args:
        order: int64 [T], query (index into the step's tokens) at each place.
        low: int32 [T], first position that the query at each place sees.
        high: int32 [T], behind the last one; more than low.
        segments: by rising first position, and so are those of each query.
        depth: most segments that a query reads.
    """

    order: NDArray[np.int64]
    low: NDArray[np.int32]
    high: NDArray[np.int32]
    segments: tuple[Segment, ...]
    depth: int


@dataclass(slots=True, eq=False)
class _Edge:
    """A segment that later rows may still join: positions [begin, end) of `slots`."""

    begin: int
    end: int
    first_place: int
    slots: NDArray[np.int64]

    def closed(self, begin: int, end_place: int) -> _Closed:
        """Its part from `begin` on, read by places up to `end_place`. Pure."""
        return begin, self.first_place, end_place, self.slots[begin : self.end]


_Closed = tuple[int, int, int, NDArray[np.int64]]
"""First position, first place, end place and slots of an edge that nobody joins any more."""


def plan_reading(rows: Sequence[QueryRow], window: int | None = None) -> StepReading:
    """Cut the step's reading into segments.

    Args:
        rows: ragged queries of the step.
        window: as `AttentionBackend.plan` says.

    Pure. Cost: O(slots of all rows).
    """
    lengths = np.array([row.num_queries for row in rows], dtype=np.int64)
    firsts = np.cumsum(lengths) - lengths
    asking = [i for i in range(len(rows)) if lengths[i]]
    if not asking:
        nothing = np.zeros(0, dtype=np.int32)
        return StepReading(np.zeros(0, dtype=np.int64), nothing, nothing, (), 0)
    if len(asking) > 1:  # big-endian bytes sort as the slots do
        asking.sort(key=lambda i: rows[i].slots.astype(">i8").tobytes())
    sorted_rows = [rows[i] for i in asking]
    order = _ranges(firsts[asking], lengths[asking])
    low, high = _seen(sorted_rows, lengths[asking], window)
    edges = sorted(_edges(sorted_rows), key=itemgetter(0, 1))
    if window is not None:
        edges = _seen_parts(edges, low, high)
    segments, depth = _with_depths(edges, len(order))
    return StepReading(order, low, high, segments, depth)


def _ranges(firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """[first, first + length) of each, end to end. Pure."""
    ends = lengths.cumsum()
    return np.arange(ends[-1]) + np.repeat(firsts - ends + lengths, lengths)


def _seen(
    rows: Sequence[QueryRow], lengths: NDArray[np.int64], window: int | None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Positions [low, high) that each query sees, int32 [T] each, rows end to end."""
    starts = np.array([row.start for row in rows], dtype=np.int64)
    high = (_ranges(starts, lengths) + 1).astype(np.int32)
    low = np.zeros_like(high) if window is None else np.maximum(high - np.int32(window), 0)
    places = lengths.cumsum() - lengths
    for place, row in zip(places.tolist(), rows, strict=True):
        for start, end in row.two_way:
            first, last = max(start - row.start, 0), max(end - row.start, 0)
            high[place + first : place + last] = end
    return low, high


def _edges(rows: Sequence[QueryRow]) -> list[_Closed]:
    """Edges of the tree of rows that are sorted by their slots.

    A row closes what it does not share with the row before; an edge that it shares in part is
    cut there.
    """
    closed: list[_Closed] = []
    path: list[_Edge] = []
    place = 0
    before = rows[0].slots[:0]
    for row in rows:
        shared = _shared_length(before, row.slots, path)
        while path and path[-1].end > shared:
            edge = path.pop()
            closed.append(edge.closed(max(edge.begin, shared), place))
            if edge.begin < shared:
                path.append(_Edge(edge.begin, shared, edge.first_place, edge.slots))
        if len(row.slots) > shared:
            path.append(_Edge(shared, len(row.slots), place, row.slots))
        place += row.num_queries
        before = row.slots
    closed.extend(edge.closed(edge.begin, place) for edge in path)
    return closed


def _shared_length(
    before: NDArray[np.int64], slots: NDArray[np.int64], path: Sequence[_Edge]
) -> int:
    """Length of the common beginning, cut back to a node where it goes on too short."""
    most = min(len(before), len(slots))
    differs = before[:most] != slots[:most]
    shared = int(differs.argmax()) if differs.any() else most
    begins = [edge.begin for edge in path if edge.begin <= shared]
    node = begins[-1] if begins else 0
    return shared if shared - node >= MIN_SHARED else node


def _seen_parts(
    edges: Sequence[_Closed], low: NDArray[np.int32], high: NDArray[np.int32]
) -> list[_Closed]:
    """Edges without what none of their queries sees."""
    kept = []
    for position, first, last, slots in edges:
        begin = max(position, int(low[first:last].min()))
        end = min(position + len(slots), int(high[first:last].max()))
        if begin < end:
            kept.append((begin, first, last, slots[begin - position : end - position]))
    return kept


def _with_depths(edges: Sequence[_Closed], num_places: int) -> tuple[tuple[Segment, ...], int]:
    """Edges numbered along each path: all queries of an edge have the same ones above it."""
    num_above = np.zeros(num_places, dtype=np.int32)
    segments: list[Segment] = []
    for position, first, last, slots in edges:
        depth = int(num_above[first])
        segments.append(Segment(first, last, position, slots, depth))
        num_above[first:last] = depth + 1
    return tuple(segments), int(num_above.max(initial=0))
