"""Slots that few queries read for themselves, padded into tables.

    queries 3      7 9 4              3 3    7 9 4 7 7    query 3 sees  7 9 4 . .
    queries 5, 6   8 2 6 1 0    ->    5 6    8 2 6 1 0    query 5 sees  8 2 6 1 .
                                                          query 6 sees  8 2 6 1 0

A row is padded with its own first slot, so that it never touches another sequence's KV, and
with its own first query, whose answer is dropped there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LooseRead", "LooseTable", "in_tables"]

GATHER_COST = 3
"""Gathering a slot takes as long as this many queries take to read it (AVX2, one thread, three
key heads of 64 values with three heads each: 0.08 us a slot and 0.027 a query)."""
TABLE_COST = 1500
"""A table more takes as long as one query takes to read this many slots (40 us a layer)."""


@dataclass(frozen=True, slots=True, eq=False)
class LooseRead:
    """Queries `queries` (int64 [n], indices into the step's tokens) read `slots` (int64 [l]).

    Query i of n sees all but the last n - 1 - i slots, which are of the queries after it.
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LooseTable:
    """Reads padded to one shape.

    Args:
        queries: int64 [R, n] indices into the step's tokens; places beyond a row's queries
            repeat its first query.
        slots: int64 [R, L]; places beyond a row's length repeat its first slot.
        num_queries: int64 [R], how many of a row's queries are its own.
        num_seen: int64 [R, n], how many of the row's first slots a query sees.
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    num_queries: NDArray[np.int64]
    num_seen: NDArray[np.int64]

    @property
    def is_query(self) -> NDArray[np.bool_]:
        """Bool [R, n]: not padding. Pure."""
        return np.arange(self.queries.shape[1]) < self.num_queries[:, None]

    @property
    def is_hidden(self) -> NDArray[np.bool_]:
        """Bool [R, n, L]: the query does not see the slot. Pure."""
        return np.arange(self.slots.shape[1]) >= self.num_seen[:, :, None]


def in_tables(reads: list[LooseRead]) -> list[LooseTable]:
    """Reads of like shape together, so that padding costs less than the tables it saves. Pure.

    Padding at most doubles the work of a table that is worth one.
    """
    reads = sorted(reads, key=lambda read: (len(read.queries), len(read.slots)))
    tables: list[LooseTable] = []
    start = 0
    while start < len(reads):
        end = _end_of_table(reads, start)
        tables.append(_table(reads[start:end]))
        start = end
    return tables


def _end_of_table(reads: list[LooseRead], start: int) -> int:
    """Which reads from `start` on are best read in one table: [start, end)."""
    longest = own = padded = 0
    for end in range(start, len(reads)):
        num_queries, num_slots = len(reads[end].queries), len(reads[end].slots)
        alone = num_slots * (num_queries + GATHER_COST)
        longest = max(longest, num_slots)
        wider = (end + 1 - start) * longest * (num_queries + GATHER_COST)
        is_dear = wider - padded > alone + TABLE_COST
        if end > start and (is_dear or wider > 2 * (own + alone) + TABLE_COST):
            return end
        own, padded = own + alone, wider
    return len(reads)


def _table(reads: list[LooseRead]) -> LooseTable:
    reads = sorted(reads, key=lambda read: int(read.queries[0]))
    num_queries = np.array([len(read.queries) for read in reads])
    lengths = np.array([len(read.slots) for read in reads])
    after = np.maximum(num_queries[:, None] - 1 - np.arange(num_queries.max()), 0)
    is_own = np.arange(num_queries.max()) < num_queries[:, None]
    return LooseTable(
        queries=_padded([read.queries for read in reads], int(num_queries.max())),
        slots=_padded([read.slots for read in reads], int(lengths.max())),
        num_queries=num_queries,
        num_seen=lengths[:, None] - np.where(is_own, after, num_queries[:, None] - 1),
    )


def _padded(rows: list[NDArray[np.int64]], width: int) -> NDArray[np.int64]:
    """[R, width], each row followed by its own first value."""
    table = np.repeat(np.array([row[0] for row in rows])[:, None], width, axis=1)
    for place, row in enumerate(rows):
        table[place, : len(row)] = row
    return table
