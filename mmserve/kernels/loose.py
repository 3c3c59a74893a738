"""Scattered slots that single queries read each for itself, padded into tables.

    query 3   7 9 4
    query 5   8 2 6 1 0      ->   slots  7 9 4 7 7   is_padding  . . . x x
                                         8 2 6 1 0               . . . . .

A row is padded with its own first slot, so that it never touches another sequence's KV.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LooseRead", "LooseTable", "in_tables"]


@dataclass(frozen=True, slots=True, eq=False)
class LooseRead:
    """Query `query`, an index into the step's tokens, reads `slots` (int64, not empty)."""

    query: int
    slots: NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class LooseTable:
    """Reads padded to one length.

    Args:
        queries: int64 [R] indices into the step's tokens.
        slots: int64 [R, L]; places beyond a row's length repeat its first slot.
        is_padding: bool [R, L].
    """

    queries: NDArray[np.int64]
    slots: NDArray[np.int64]
    is_padding: NDArray[np.bool_]


def in_tables(reads: list[LooseRead]) -> list[LooseTable]:
    """Reads grouped by length, so that padding at most doubles the reading. Pure."""
    reads = sorted(reads, key=lambda read: len(read.slots))
    tables: list[LooseTable] = []
    start = 0
    while start < len(reads):
        limit = max(32, 2 * len(reads[start].slots))
        end = start
        while end < len(reads) and len(reads[end].slots) <= limit:
            end += 1
        tables.append(_table(reads[start:end]))
        start = end
    return tables


def _table(reads: list[LooseRead]) -> LooseTable:
    reads = sorted(reads, key=lambda read: read.query)
    lengths = np.array([len(read.slots) for read in reads])
    width = int(lengths.max())
    slots = np.repeat(np.array([read.slots[0] for read in reads])[:, None], width, axis=1)
    for place, read in enumerate(reads):
        slots[place, : len(read.slots)] = read.slots
    queries = np.array([read.query for read in reads])
    return LooseTable(queries, slots, np.arange(width) >= lengths[:, None])
