"""Which queries read which slots together: the plan of shared-prefix attention, in numpy.

Every query row reads slots [0, n) causally. The slots are cut into segments; a segment's
queries read all of it, or, if it is causal, the triangle of a row's own new tokens.

    slots    0 ............ shared ............ n - t ...... n
    row A    [ shared segment, with B ][ alone ][ causal own ]     a long row
    row B    [ shared segment, with A ][ in a table with C's ]     a short one
    row C    [ in a table ...................................]

A query that reads several segments gets the parts merged by log-sum-exp; `level` numbers the
parts of a query. Source: cascade inference (FlashInfer, 2024) and Hydragen (2024); we find the
shared runs from the slots themselves, at any number of depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.kernels.attention import QueryRow
from mmserve.kernels.loose import LooseRead, LooseTable, in_tables

__all__ = ["LooseBatch", "Segment", "StepSegments", "plan_segments"]

MIN_SHARED = 32
"""Fewer shared slots are read by each row for itself."""
MIN_RUN = 2048
"""A shorter contiguous run among other slots is gathered with these instead of viewed.

A part more a query costs a call and a place in the merge. On one thread of AVX2, 16 rows of one
query on 300 contiguous slots and 20 others take 1.1 ms a layer gathered and 1.6 in two parts;
one row breaks even at 4,000 slots of 192 values.
"""
MAX_SHORT = 64
"""What rows of at most this many queries read for themselves is read in tables: 16 rows of 24
queries on 180 slots take 3.1 ms a layer instead of 4.3, of 48 queries 5.9 instead of 7.1."""
MAX_PAIRS = 1 << 16
"""A read of more pairs of query and slot is no short one: a table holds a mask of its pairs."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Queries `queries` (int64, indices into the step's tokens) read `slots` (int64).

    `is_causal`: the queries are the last of the slots' tokens and see none after themselves,
    and, if `window` is given, only the last `window` tokens, themselves included.
    `is_two_way`: the queries are the last of the slots' tokens too, and see just what comes
    after themselves.
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    level: int
    is_causal: bool = False
    window: int | None = None
    is_two_way: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LooseBatch:
    """What few queries each read for themselves, as part `level` of these queries."""

    table: LooseTable
    level: int


@dataclass(frozen=True, slots=True, eq=False)
class StepSegments:
    """The whole step: every (query, visible slot) pair is in exactly one segment or batch."""

    num_queries: int
    num_levels: int
    segments: tuple[Segment, ...]
    batches: tuple[LooseBatch, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Reader:
    """Consecutive queries that all read `slots` [0, shareable), and the rest causally."""

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    shareable: int


def plan_segments(rows: Sequence[QueryRow], window: int | None = None) -> StepSegments:
    """Cut the step's reading into segments. Pure. Cost: O(slots of all rows)."""
    return _Planner(rows, window).finish()


class _Planner:
    """Collects segments; `_levels` counts the parts each query has so far."""

    def __init__(self, rows: Sequence[QueryRow], window: int | None) -> None:
        num_queries = sum(row.num_queries for row in rows)
        self._levels = np.zeros(num_queries, dtype=np.int64)
        self._segments: list[Segment] = []
        self._loose: list[LooseRead] = []
        readers: list[_Reader] = []
        first = 0
        for row in rows:
            readers.extend(self._readers(row, first, window))
            self._two_way(row, first)
            first += row.num_queries
        if readers:
            self._share(readers, 0)

    def finish(self) -> StepSegments:
        tables = in_tables(self._loose)
        batches = tuple(
            LooseBatch(table, self._level(table.queries.reshape(-1))) for table in tables
        )
        depth = int(self._levels.max(initial=0))
        return StepSegments(len(self._levels), depth, tuple(self._segments), batches)

    def _readers(self, row: QueryRow, first: int, window: int | None) -> list[_Reader]:
        queries = np.arange(first, first + row.num_queries)
        if window is not None and len(row.slots) > window:
            begin = max(0, row.start + 1 - window)
            self._add(queries, row.slots[begin:], is_causal=True, window=window)
            return []
        shareable = len(row.slots) if row.num_queries == 1 else row.start
        return [_Reader(queries, row.slots, shareable)]

    def _two_way(self, row: QueryRow, first: int) -> None:
        """What two-way ranges show a row's queries of what comes after these."""
        for start, end in row.two_way:
            begin = max(start, row.start)
            if end <= begin + 1:
                continue
            queries = np.arange(first + begin - row.start, first + end - row.start)
            level = self._level(queries)
            slots = row.slots[begin:end]
            self._segments.append(Segment(queries, slots, level, is_two_way=True))

    def _share(self, readers: list[_Reader], begin: int) -> None:
        """Segments of readers that have the same slots [begin, known), at every depth below."""
        stack = [(readers, begin, begin)]
        while stack:
            group, begin, known = stack.pop()
            if len(group) == 1:
                self._alone(group[0], begin)
                continue
            shared = _common_length(group, known)
            if shared - begin >= MIN_SHARED:
                queries = np.concatenate([reader.queries for reader in group])
                self._read(queries, group[0].slots[begin:shared])
                begin = shared
            stack.extend((part, begin, shared) for part in _split(group, shared))

    def _alone(self, reader: _Reader, begin: int) -> None:
        """What one reader reads for itself: [begin, shareable), then its causal triangle."""
        common, own = reader.slots[begin : reader.shareable], reader.slots[reader.shareable :]
        num_queries = len(reader.queries)
        if num_queries > MAX_SHORT or num_queries * (len(reader.slots) - begin) > MAX_PAIRS:
            self._read(reader.queries, common)
            if len(own):
                self._add(reader.queries, own, is_causal=True)
            return
        loose = [*self._runs(reader.queries, common), own]
        slots = np.concatenate(loose)
        if len(slots):
            self._loose.append(LooseRead(reader.queries, slots))

    def _read(self, queries: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """All of `slots` by all of `queries`: long runs as views, the rest gathered at once."""
        loose = self._runs(queries, slots)
        if loose:
            self._add(queries, np.concatenate(loose))

    def _runs(
        self, queries: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> list[NDArray[np.int64]]:
        """Let all of `queries` read the long runs of `slots`. Gives what is left of these."""
        left: list[NDArray[np.int64]] = []
        for piece, is_run in _pieces(slots):
            if is_run:
                self._add(queries, piece)
            else:
                left.append(piece)
        return left

    def _add(
        self,
        queries: NDArray[np.int64],
        slots: NDArray[np.int64],
        *,
        is_causal: bool = False,
        window: int | None = None,
    ) -> None:
        level = self._level(queries)
        self._segments.append(Segment(queries, slots, level, is_causal, window))

    def _level(self, queries: NDArray[np.int64]) -> int:
        """A number that no part of these queries has yet. Changes: it is taken."""
        level = int(self._levels[queries].max())
        self._levels[queries] = level + 1
        return level


def _common_length(group: list[_Reader], known: int) -> int:
    """Length of the slots that all readers may read and have in common, at least `known`."""
    end = min(reader.shareable for reader in group)
    first = group[0].slots
    for reader in group[1:]:
        if end <= known:
            break
        differs = reader.slots[known:end] != first[known:end]
        if differs.any():
            end = known + int(differs.argmax())
    return end


def _split(group: list[_Reader], shared: int) -> list[list[_Reader]]:
    """Readers that go on together after `shared` slots; one that ends there stands alone."""
    parts: dict[int, list[_Reader]] = {}
    alone: list[list[_Reader]] = []
    for reader in group:
        if reader.shareable > shared:
            parts.setdefault(int(reader.slots[shared]), []).append(reader)
        else:
            alone.append([reader])
    return [*parts.values(), *alone]


def _pieces(slots: NDArray[np.int64]) -> list[tuple[NDArray[np.int64], bool]]:
    """Cut into consecutive runs of at least MIN_RUN (True) and what lies between (False)."""
    if len(slots) < MIN_RUN:
        return [(slots, False)] if len(slots) else []
    breaks = np.flatnonzero(np.diff(slots) != 1) + 1
    if len(breaks) == 0:
        return [(slots, True)]
    bounds = np.concatenate([[0], breaks, [len(slots)]])
    pieces: list[tuple[NDArray[np.int64], bool]] = []
    loose_from = 0
    for i in np.flatnonzero(np.diff(bounds) >= MIN_RUN):
        if bounds[i] > loose_from:
            pieces.append((slots[loose_from : bounds[i]], False))
        pieces.append((slots[bounds[i] : bounds[i + 1]], True))
        loose_from = int(bounds[i + 1])
    if loose_from < len(slots):
        pieces.append((slots[loose_from:], False))
    return pieces
