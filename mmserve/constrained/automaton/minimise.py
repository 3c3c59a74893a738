"""The smallest table with the same texts.

States begin as two blocks, those that may end a text and the others, and a block is split where
its states lead to different blocks. After a split only states that lead to a block with a new
name are looked at again, and the largest piece keeps its block's name, so each state is looked
at a logarithmic number of times for each of its successors.

Source: Hopcroft, "An n log n algorithm for minimizing states in a finite automaton", 1971; we
compare whole rows of the table instead of one letter at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

__all__ = ["minimise"]

_CHUNK_CELLS = 1 << 18


def minimise(
    table: NDArray[np.int32], is_end: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], NDArray[np.bool_], NDArray[np.int32]]:
    """The smallest table with the same texts, which states may end there, and names.

    Args:
        table: int32 [Q, K] states after atoms, -1 for none; every state is reached from state 0
            and leads to one that may end.
        is_end: bool [Q].

    Returns:
        int32 [S, K]; bool [S]; int32 [Q], the new name of each state. The start stays 0, and
        the order of the states stays that of the first of each block.

    Pure.
    """
    block = _Blocks(table, is_end).refine()
    _, first, names = np.unique(block, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    renamed = rank[names.ravel()]
    kept = first[order]
    ahead = np.append(renamed, np.int32(-1))
    return ahead[table[kept]], is_end[kept], renamed


class _Blocks:
    """Blocks are neighbours in one list of states, so that taking some out costs only them.

    order  [ block 0 ... | block 1 ... | block 2 ... ]      place[order[k]] = k
    """

    def __init__(self, table: NDArray[np.int32], is_end: NDArray[np.bool_]) -> None:
        self._table = table
        self._block = np.append(is_end.astype(np.int32), np.int32(-1))
        self._order: list[int] = np.argsort(is_end, kind="stable").tolist()
        self._place = np.argsort(self._order).tolist()
        num_others = int((~is_end).sum())
        self._start = [0, num_others]
        self._stop = [num_others, len(table)]
        self._sources = _sources(table)

    def refine(self) -> NDArray[np.int32]:
        """The block int32 [Q] of each state."""
        doubtful: Iterable[int] = range(len(self._table))
        while doubtful:
            renamed = self._split(doubtful)
            doubtful = {source for state in renamed for source in self._sources[state]}
        return self._block[:-1]

    def _split(self, doubtful: Iterable[int]) -> list[int]:
        """Split blocks by where their doubtful states lead; the states with a new name."""
        by_block: dict[int, list[int]] = {}
        states = sorted(doubtful)
        for state, number in zip(states, self._block[states].tolist(), strict=True):
            by_block.setdefault(number, []).append(state)
        models = {number: self._other(number, some) for number, some in by_block.items()}
        rows = self._rows([*states, *(one for one in models.values() if one is not None)])
        renamed: list[int] = []
        for number, some in by_block.items():
            pieces: dict[bytes, list[int]] = {}
            for state in some:
                pieces.setdefault(rows[state], []).append(state)
            model = models[number]
            leaving = self._leaving(number, pieces, None if model is None else rows[model])
            renamed += self._move(number, leaving)
        return renamed

    def _other(self, number: int, some: list[int]) -> int | None:
        """A state of a block that is none of `some`."""
        if len(some) == self._stop[number] - self._start[number]:
            return None
        known = set(some)
        members = (self._order[place] for place in range(self._start[number], len(self._order)))
        return next(one for one in members if one not in known)

    def _leaving(
        self, number: int, pieces: dict[bytes, list[int]], model: bytes | None
    ) -> list[list[int]]:
        """The pieces of a block that get a new name: all but the largest.

        States that are not doubtful are alike, and lead where `model` says.
        """
        parts = list(pieces.values())
        if model is not None:
            pieces.pop(model, None)
            parts = list(pieces.values())
            first, past = self._start[number], self._stop[number]
            num_alike = past - first - sum(map(len, parts))
            if all(num_alike >= len(one) for one in parts):
                return parts
            others = {state for part in parts for state in part}
            parts.append([one for one in self._order[first:past] if one not in others])
        largest = max(range(len(parts)), key=lambda k: len(parts[k]))
        return parts[:largest] + parts[largest + 1 :]

    def _move(self, number: int, parts: list[list[int]]) -> list[int]:
        """Give each part a block of its own, cut off from the end of its old one."""
        order, place = self._order, self._place
        renamed: list[int] = []
        for part in parts:
            past = end = self._stop[number]
            for state in part:
                end -= 1
                other, hole = order[end], place[state]
                order[end], order[hole] = state, other
                place[state], place[other] = end, hole
            self._stop[number] = end
            self._block[part] = len(self._start)
            self._start.append(end)
            self._stop.append(past)
            renamed += part
        return renamed

    def _rows(self, states: list[int]) -> dict[int, bytes]:
        """For each state, the blocks that it leads to, as bytes to compare."""
        found: dict[int, bytes] = {}
        width = self._table.shape[1]
        num_chunk = max(_CHUNK_CELLS // max(width, 1), 1)
        for start in range(0, len(states), num_chunk):
            chunk = states[start : start + num_chunk]
            content = self._block[self._table[chunk]].tobytes()
            num_bytes = width * 4
            for order, state in enumerate(chunk):
                found[state] = content[order * num_bytes : (order + 1) * num_bytes]
        return found


def _sources(table: NDArray[np.int32]) -> list[list[int]]:
    """For each state, the states that lead to it."""
    sources: list[list[int]] = [[] for _ in range(len(table))]
    for state, row in enumerate(table):
        for target in set(row.tolist()):
            if target >= 0:
                sources[target].append(state)
    return sources
