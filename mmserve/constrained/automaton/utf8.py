"""Bytes to atoms: one small automaton for UTF-8 that all states of a pattern share.

A node reads one byte of a character and says the node for the next byte, or the atom:

    root  --d0-->  node 1  --b0..bf-->  atom 0        one for each class of \u0430-\u044f
          --d1-->  node 2  --80..8f-->  atom 0

So a state inside of a character is a pair, the state before it and a node, and a class of
hundreds of ranges costs its nodes once and not once for each state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.atoms import Atoms

__all__ = ["DEAD", "byte_nodes"]

DEAD = -1
_FEW = 64  # a continuation byte tells 64 ways apart
_NUM_CODES = 0x110000


def byte_nodes(atoms: Atoms) -> NDArray[np.int32]:
    """What each node does with each byte, int32 [U, 256].

    A value in [0, U) is the next node, U + k says that atom k is complete, `DEAD` that nothing
    in the pattern has such a byte there. Node 0 begins a character. Pure.
    """
    return _Nodes(atoms).build()


class _Nodes:
    """Nodes are numbered from 1 by content; 0 stands for none until the root takes it."""

    def __init__(self, atoms: Atoms) -> None:
        counts = atoms.high - atoms.low + 1
        bounds = np.stack((atoms.low, atoms.high + 1), axis=1).ravel()
        pieces = np.diff(np.concatenate(([0], bounds, [_NUM_CODES])))
        values = np.zeros(2 * len(counts) + 1, dtype=np.int32)
        values[1::2] = atoms.atom + 1
        self._label = np.repeat(values, pieces)  # atom + 1, or 0
        self._rows: dict[tuple[int, bytes], int] = {}
        self._content: list[tuple[int, NDArray[np.int32]]] = []

    def build(self) -> NDArray[np.int32]:
        ends = self._named(0, self._label.reshape(-1, _FEW))
        # a lead byte of three or four bytes may not say what fewer bytes say
        long_ends = ends.copy()
        long_ends[: 0x800 // _FEW] = 0
        middles = self._named(1, long_ends.reshape(-1, _FEW))
        fours = np.zeros(5 * _FEW, dtype=np.int32)
        fours[0x10000 // _FEW**2 : len(middles)] = middles[0x10000 // _FEW**2 :]
        leads = self._named(2, fours.reshape(-1, _FEW))
        num_nodes = len(self._content) + 1
        table = np.full((num_nodes, 256), DEAD, dtype=np.int32)
        for number, (level, row) in enumerate(self._content, 1):
            past = num_nodes - 1 if level == 0 else 0
            table[number, 0x80:0xC0] = np.where(row > 0, row + past, DEAD)
        ascii_row = self._label[:0x80]
        table[0, :0x80] = np.where(ascii_row > 0, ascii_row + num_nodes - 1, DEAD)
        for first, children in ((0xC2, ends[2:32]), (0xE0, middles[:16]), (0xF0, leads)):
            table[0, first : first + len(children)] = np.where(children > 0, children, DEAD)
        return table

    def _named(self, level: int, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """A node int32 [N] for each row int32 [N, 64]; 0 for rows of zeros."""
        names = np.zeros(len(rows), dtype=np.int32)
        is_even = (rows == rows[:, :1]).all(axis=1)
        firsts = rows[:, 0]
        for value in np.unique(firsts[is_even]).tolist():
            if value:
                row = np.full(_FEW, value, dtype=np.int32)
                names[is_even & (firsts == value)] = self._node(level, row)
        for place in np.flatnonzero(~is_even).tolist():
            names[place] = self._node(level, rows[place])
        return names

    def _node(self, level: int, row: NDArray[np.int32]) -> int:
        key = (level, row.tobytes())
        number = self._rows.get(key)
        if number is None:
            number = self._rows[key] = len(self._content) + 1
            self._content.append((level, row))
        return number
