"""Which queries read which slots together: the plan of shared-prefix attention, in numpy.

Every query row reads slots [0, n) causally. The slots are cut into segments; a segment's
queries read all of it, or, if it is causal, the triangle of a row's own new tokens.

    slots    0 ............ shared ............ n - t ...... n
    row A    [ shared segment, with B ][ alone ][ causal own ]
    row B    [ shared segment, with A ][ a single query's own ]

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
MIN_RUN = 96
"""A shorter contiguous run is gathered instead of viewed."""
MAX_SPLIT = 4
"""Rows of at most this many queries are treated as single queries."""
MAX_LOOSE = 256
"""A single query with more scattered slots than this gets a segment of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Queries `queries` (int64, indices into the step's tokens) read `slots` (int64).

    `is_causal`: the queries are the last of the slots' tokens and see none after themselves,
    and, if `window` is given, only the last `window` tokens, themselves included.
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    level: int
    is_causal: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LooseBatch:
    """Single queries with few scattered slots each, as part `level` of these queries."""

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
    """Consecutive queries that all read `slots` [0, shareable), and more of it causally."""

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
            first += row.num_queries
        if readers:
            self._share(readers, 0)

    def finish(self) -> StepSegments:
        tables = in_tables(self._loose)
        batches = tuple(LooseBatch(table, self._level(table.queries)) for table in tables)
        depth = int(self._levels.max(initial=0))
        return StepSegments(len(self._levels), depth, tuple(self._segments), batches)

    def _readers(self, row: QueryRow, first: int, window: int | None) -> list[_Reader]:
        queries = np.arange(first, first + row.num_queries)
        if window is not None and len(row.slots) > window:
            begin = max(0, row.start + 1 - window)
            self._add(queries, row.slots[begin:], is_causal=True, window=window)
            return []
        if row.num_queries > MAX_SPLIT:
            return [_Reader(queries, row.slots, row.start)]
        return [
            _Reader(queries[i : i + 1], row.slots[: row.start + i + 1], row.start + i + 1)
            for i in range(row.num_queries)
        ]

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
        if len(reader.queries) > 1:
            self._read(reader.queries, reader.slots[begin : reader.shareable])
            self._add(reader.queries, reader.slots[reader.shareable :], is_causal=True)
            return
        loose: list[NDArray[np.int64]] = []
        for piece, is_run in _pieces(reader.slots[begin : reader.shareable]):
            if is_run:
                self._add(reader.queries, piece)
            else:
                loose.append(piece)
        if loose:
            self._scattered(reader.queries, np.concatenate(loose))

    def _scattered(self, queries: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        if len(slots) > MAX_LOOSE:
            self._add(queries, slots)
        else:
            self._loose.append(LooseRead(int(queries[0]), slots))

    def _read(self, queries: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """All of `slots` by all of `queries`: long runs as views, the rest gathered at once."""
        loose: list[NDArray[np.int64]] = []
        for piece, is_run in _pieces(slots):
            if is_run:
                self._add(queries, piece)
            else:
                loose.append(piece)
        if loose:
            self._add(queries, np.concatenate(loose))

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
