"""A step's reading cut into work items of the attention kernel, in numpy.

    segment (places x slots) -> blocks of places (rows of a tile) -> pieces of slots -> items

A block reads only slots that one of its queries sees. A long block is cut into pieces until all
processors have work. A query that one item alone answers is final; the others write partial
outputs, which are joined.

Source: FlashDecoding (2023) for the pieces; we cut by the work of the whole step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmserve.kernels.attention import QueryRow
from mmserve.kernels.reading import Segment, StepReading, plan_reading
from mmserve.kernels.triton.tables import AttentionTiles, Tile

__all__ = ["Division", "StepItems", "apart", "step_items"]

Ints = NDArray[np.int32]
_Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Division:
    """What the cuts depend on.

    Args:
        heads: query heads of a KV head.
        num_groups: KV heads; each is a program of its own for every item.
        num_processors: streaming multiprocessors of the device.
    """

    heads: int
    num_groups: int
    tiles: AttentionTiles
    num_processors: int

    def num_places(self, tile: Tile) -> int:
        """Places that fill a tile; 1 or more."""
        return tile.rows // self.heads

    def num_programs(self, tile: Tile) -> int:
        """Items that long segments are cut for."""
        return -(-tile.programs_per_processor * self.num_processors // self.num_groups)


@dataclass(frozen=True, slots=True, eq=False)
class StepItems:
    """What the kernels read of one step.

    Args:
        order: int32 [T], query at each place.
        low, high: int32 [T], positions [low, high) that each place sees.
        narrow, wide: int32 [items, 9] each, see `attend.ITEM_FIELDS`; the longest first.
        joins: int32 [J, 3], see `merge_kernel`.
        sources: int32 [P], rows of the partial outputs, those of one place together.
        slots: int32 [S].
    """

    order: Ints
    low: Ints
    high: Ints
    narrow: Ints
    wide: Ints
    joins: Ints
    sources: Ints
    slots: Ints


def apart(rows: Sequence[QueryRow], window: int | None) -> StepReading:
    """The step's reading with nothing shared: every row reads its own slots. Pure."""
    alone = [plan_reading([row], window) for row in rows]
    lengths = [len(reading.order) for reading in alone]
    firsts = np.cumsum([0, *lengths])
    segments: list[Segment] = []
    for reading, first in zip(alone, firsts.tolist(), strict=False):
        segments += (
            replace(
                segment,
                first_place=first + segment.first_place,
                end_place=first + segment.end_place,
            )
            for segment in reading.segments
        )
    nothing = np.zeros(0, dtype=np.int32)
    return StepReading(
        np.arange(firsts[-1]),
        np.concatenate([nothing, *(reading.low for reading in alone)]),
        np.concatenate([nothing, *(reading.high for reading in alone)]),
        tuple(segments),
        max((reading.depth for reading in alone), default=0),
    )


def step_items(reading: StepReading, division: Division) -> StepItems:
    """Cut the reading. Pure. Cost: O(places + slots + items)."""
    segments = reading.segments
    slots = np.concatenate([np.zeros(0, np.int64), *(segment.slots for segment in segments)])
    bounds = np.array(
        [(s.first_place, s.end_place, s.first_position, len(s.slots)) for s in segments],
        dtype=np.int64,
    ).reshape(-1, 4)
    at = np.cumsum(bounds[:, 3]) - bounds[:, 3]
    spread = (bounds[:, 1] - bounds[:, 0]) * division.heads
    is_wide = spread > division.tiles.narrow.rows
    narrow, wide = (
        _cut(reading, bounds[chosen], at[chosen], division, tile)
        for chosen, tile in ((~is_wide, division.tiles.narrow), (is_wide, division.tiles.wide))
    )
    items = np.concatenate([narrow, wide])
    items[:, 7] = _runs(slots, items[:, 2], items[:, 3])
    joins, sources = _join(items, reading.order)
    narrow, wide = items[: len(narrow)], items[len(narrow) :]
    return StepItems(
        reading.order.astype(np.int32),
        reading.low,
        reading.high,
        _longest_first(narrow),
        _longest_first(wide),
        joins,
        sources,
        slots.astype(np.int32),
    )


def _cut(
    reading: StepReading, bounds: _Longs, at: _Longs, division: Division, tile: Tile
) -> _Longs:
    """Items of some segments, all but their runs and partial rows, int64 [items, 9]."""
    of, turn = _expanded(_ceil(bounds[:, 1] - bounds[:, 0], division.num_places(tile)))
    first = bounds[of, 0] + turn * division.num_places(tile)
    end = np.minimum(first + division.num_places(tile), bounds[of, 1])
    low, high = reading.low.astype(np.int64), reading.high.astype(np.int64)
    begin = np.maximum(bounds[of, 2], _over(np.minimum, low, first, end))
    stop = np.minimum(bounds[of, 2] + bounds[of, 3], _over(np.maximum, high, first, end))
    sees = begin < stop
    of, first, end, begin, stop = (x[sees] for x in (of, first, end, begin, stop))
    work = -(-int((stop - begin).sum()) // division.num_programs(tile))
    piece = max(tile.least_piece, work)
    step = _ceil(_ceil(stop - begin, _ceil(stop - begin, piece)), tile.slots) * tile.slots
    block, turn = _expanded(_ceil(stop - begin, step))
    of, first, end = of[block], first[block], end[block]
    begin = begin[block] + turn * step[block]
    stop = np.minimum(begin + step[block], stop[block])
    full_begin = np.maximum(_over(np.maximum, low, first, end) - begin, 0)
    full_end = np.minimum(_over(np.minimum, high, first, end), stop) - begin
    head = _ceil(full_begin, tile.slots) * tile.slots
    full = (full_end - head) // tile.slots * tile.slots
    items = np.zeros((len(of), 9), dtype=np.int64)
    items[:, 0], items[:, 1] = first, end - first
    items[:, 2], items[:, 3] = at[of] + begin - bounds[of, 2], stop - begin
    items[:, 4] = begin
    items[:, 5], items[:, 6] = np.where(full > 0, head, 0), np.maximum(full, 0)
    return items


def _expanded(counts: _Longs) -> tuple[_Longs, _Longs]:
    """Which entry each of `sum(counts)` parts belongs to, and its number within it. Pure."""
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) - np.repeat(np.cumsum(counts) - counts, counts)


def _ceil(amount: _Longs, unit: _Longs | int) -> _Longs:
    return -(-amount // unit)


def _over(way: np.ufunc, of: _Longs, first: _Longs, end: _Longs) -> _Longs:
    """The extreme of `of` over each range [first, end), none of which is empty. Pure."""
    if not len(first):
        return first
    ranges = np.stack([first, end], axis=1).ravel()
    found: _Longs = way.reduceat(np.append(of, 0), ranges)[::2]
    return found


def _runs(slots: _Longs, first: _Longs, lengths: _Longs) -> _Longs:
    """First slot of each item if its slots are consecutive, else -1. Pure."""
    if not len(first):
        return first
    breaks = np.cumsum(np.diff(slots, prepend=slots[:1]) != 1)
    is_run = breaks[first] == breaks[first + lengths - 1]
    return np.where(is_run, slots[first], -1)


def _join(items: _Longs, order: _Longs) -> tuple[Ints, Ints]:
    """Joins and sources of what several items answer. Changes: partial rows of `items`."""
    first, counts = items[:, 0], items[:, 1]
    answers = np.zeros(len(order) + 1, dtype=np.int64)
    np.add.at(answers, first, 1)
    np.add.at(answers, first + counts, -1)
    is_final = _over(np.maximum, np.cumsum(answers)[:-1], first, first + counts) == 1
    counts = np.where(is_final, 0, counts)
    items[:, 8] = np.where(is_final, -1, np.cumsum(counts) - counts)
    of, turn = _expanded(counts)
    places = first[of] + turn
    sources = np.argsort(places, kind="stable")
    joined, num_parts = np.unique(places, return_counts=True)
    ends = np.cumsum(num_parts)
    joins = np.stack([order[joined], ends - num_parts, ends], axis=1)
    return joins.astype(np.int32), sources.astype(np.int32)


def _longest_first(items: _Longs) -> Ints:
    """Long items begin first, so that none is left alone at the end. Pure."""
    chosen: Ints = items[np.argsort(-items[:, 3], kind="stable")].astype(np.int32)
    return chosen
