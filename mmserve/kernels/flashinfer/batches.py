"""Which queries read which slots in which call of FlashInfer: index arithmetic in numpy.

A call answers requests: queries over slots, seen whole or causally (the last query sees all
slots, each one before it one less). A query may stand in many calls, once in each; what it
reads in them is merged by log-sum-exp.

    segment of the reading      |======== slots [b, e) ========|
    queries at positions >= e   whole: one request for all of them, whatever row they are of
    queries at positions in it  causal: a request a row, over slots up to its last query
    queries before it           none

Under a window rows longer than it read what they see for themselves, causally and windowed; the
other rows see everything, and share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.kernels.attention import QueryRow
from mmserve.kernels.reading import Segment, StepReading, plan_reading

__all__ = ["Batch", "plan_batches"]

Ints = NDArray[np.int64]
Bounds = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The requests of one call; request r has queries and slots [bounds[r], bounds[r + 1]).

    Args:
        is_causal: whether query i of n sees all but the last n - 1 - i of m slots, else all m.
        window: most slots that a query of a causal batch sees, its own included, or None.
        queries: int64 [Q], queries by their place among the step's tokens; none stands twice.
        query_bounds: int32 [R + 1].
        slots: int32 [S].
        slot_bounds: int32 [R + 1].
    """

    is_causal: bool
    window: int | None
    queries: Ints
    query_bounds: Bounds
    slots: Bounds
    slot_bounds: Bounds

    @property
    def is_decode(self) -> bool:
        """Whether every request has one query. Pure."""
        return len(self.queries) == len(self.query_bounds) - 1


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """Queries (by place among the step's tokens) over slots."""

    queries: Ints
    slots: Ints


def plan_batches(rows: Sequence[QueryRow], window: int | None = None) -> list[Batch]:
    """The calls that together read what every query sees, once.

    Args:
        rows: ragged queries of the step, without two-way spans.
        window: as `AttentionBackend.plan` says.

    Pure. Cost: O(slots of all rows).
    """
    lengths = np.array([row.num_queries for row in rows], dtype=np.int64)
    firsts = np.cumsum(lengths) - lengths
    causal: list[_Request] = []
    sharing: list[int] = []
    for number, row in enumerate(rows):
        if window is None or len(row.slots) <= window:
            sharing.append(number)
        elif row.num_queries:
            causal.append(_alone(row, int(firsts[number]), window))
    levels: dict[int, list[_Request]] = {}
    if sharing:
        reading = plan_reading([rows[i] for i in sharing])
        owners = np.repeat(np.array(sharing, dtype=np.int64), lengths[sharing])
        starts = np.repeat(
            firsts[sharing] - (np.cumsum(lengths[sharing]) - lengths[sharing]), lengths[sharing]
        )
        queries = reading.order + starts[reading.order]
        causal += _cut(reading, queries, owners[reading.order], levels)
    batches = [_joined(levels[depth], None, is_causal=False) for depth in sorted(levels)]
    if causal:
        batches.append(_joined(causal, window, is_causal=True))
    return batches


def _alone(row: QueryRow, first: int, window: int) -> _Request:
    """A row over the slots that any of its queries sees. Pure."""
    low = max(row.start + 1 - window, 0)
    queries = np.arange(first, first + row.num_queries, dtype=np.int64)
    return _Request(queries, row.slots[low:])


def _cut(
    reading: StepReading, queries: Ints, owners: Ints, levels: dict[int, list[_Request]]
) -> list[_Request]:
    """Causal requests of a reading; the whole ones are put into `levels` by their depth.

    Args:
        reading: of rows without two-way spans and window.
        queries: int64 [T], the step's token at each place.
        owners: int64 [T], whose query is at each place.
        levels: Changes: gets the whole requests.
    """
    causal: list[_Request] = []
    for segment, least in zip(reading.segments, _least_high(reading), strict=True):
        whole = levels.setdefault(segment.depth, [])
        places = slice(segment.first_place, segment.end_place)
        if least >= segment.end_position:
            whole.append(_Request(queries[places], segment.slots))
            continue
        for part in _rows(segment, owners):
            _cut_row(segment, queries[part], reading.high[part], whole, causal)
    for depth in [depth for depth, requests in levels.items() if not requests]:
        del levels[depth]
    return causal


def _least_high(reading: StepReading) -> list[int]:
    """For each segment the least `high` of its queries. Pure."""
    if not reading.segments:
        return []
    bounds = [(segment.first_place, segment.end_place) for segment in reading.segments]
    padded = np.append(reading.high, np.int32(0))
    least: list[int] = np.minimum.reduceat(padded, np.array(bounds).ravel())[::2].tolist()
    return least


def _rows(segment: Segment, owners: Ints) -> Iterator[slice]:
    """Places of each row among those of a segment. Pure."""
    mine = owners[segment.first_place : segment.end_place]
    cuts = np.flatnonzero(np.diff(mine)) + 1
    bounds = [0, *cuts.tolist(), len(mine)]
    for first, end in itertools.pairwise(bounds):
        yield slice(segment.first_place + first, segment.first_place + end)


def _cut_row(
    segment: Segment,
    queries: Ints,
    high: Bounds,
    whole: list[_Request],
    causal: list[_Request],
) -> None:
    """One row's part of a segment. Changes: `whole` and `causal`.

    `high` rises by one from query to query: how far each one sees.
    """
    begin, end = segment.first_position, segment.end_position
    num_before = int(np.searchsorted(high, begin, side="right"))
    num_inside = int(np.searchsorted(high, end, side="left"))
    first_whole = num_before
    if num_inside > num_before:
        first_whole = int(np.searchsorted(high, end, side="right"))
        seen = int(high[first_whole - 1]) - begin
        causal.append(_Request(queries[num_before:first_whole], segment.slots[:seen]))
    if first_whole < len(queries):
        whole.append(_Request(queries[first_whole:], segment.slots))


def _joined(requests: Sequence[_Request], window: int | None, *, is_causal: bool) -> Batch:
    return Batch(
        is_causal=is_causal,
        window=window,
        queries=np.concatenate([request.queries for request in requests]),
        query_bounds=_bounds([len(request.queries) for request in requests]),
        slots=np.concatenate([request.slots for request in requests]).astype(np.int32),
        slot_bounds=_bounds([len(request.slots) for request in requests]),
    )


def _bounds(sizes: Sequence[int]) -> Bounds:
    bounds = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(sizes, out=bounds[1:])
    return bounds
