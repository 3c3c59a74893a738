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

    def closed(self, begin: int, end_place: int) -> Segment:
        """Its part from `begin` on, read by places up to `end_place`; its depth comes later."""
        return Segment(self.first_place, end_place, begin, self.slots[begin : self.end], 0)


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
    order = np.concatenate([np.arange(firsts[i], firsts[i] + lengths[i]) for i in asking])
    seen = [_seen(rows[i], window) for i in asking]
    low = np.concatenate([first for first, _ in seen])
    high = np.concatenate([end for _, end in seen])
    segments, depth = _with_depths(_edges([rows[i] for i in asking]), low, high)
    return StepReading(order, low, high, segments, depth)


def _seen(row: QueryRow, window: int | None) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Positions [low, high) that each query of a row sees, int32 [num_queries] each."""
    high = np.arange(row.start + 1, len(row.slots) + 1, dtype=np.int32)
    low = np.zeros_like(high) if window is None else np.maximum(high - np.int32(window), 0)
    for start, end in row.two_way:
        high[max(start - row.start, 0) : max(end - row.start, 0)] = end
    return low, high


def _edges(rows: Sequence[QueryRow]) -> list[Segment]:
    """Edges of the tree of rows that are sorted by their slots.

    A row closes what it does not share with the row before; an edge that it shares in part is
    cut there.
    """
    closed: list[Segment] = []
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


def _with_depths(
    edges: Sequence[Segment], low: NDArray[np.int32], high: NDArray[np.int32]
) -> tuple[tuple[Segment, ...], int]:
    """Edges without what none of their queries sees, numbered along each path."""
    num_before = np.zeros(len(low), dtype=np.int64)
    kept: list[Segment] = []
    for edge in sorted(edges, key=lambda edge: (edge.first_position, edge.first_place)):
        places = slice(edge.first_place, edge.end_place)
        begin = max(edge.first_position, int(low[places].min()))
        end = min(edge.end_position, int(high[places].max()))
        if begin >= end:
            continue
        slots = edge.slots[begin - edge.first_position : end - edge.first_position]
        depth = int(num_before[places].max())
        kept.append(Segment(edge.first_place, edge.end_place, begin, slots, depth))
        num_before[places] += 1
    return tuple(kept), int(num_before.max(initial=0))
