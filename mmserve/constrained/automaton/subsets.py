"""Continuations to a table: a state is the set of continuations that a text may have."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.continuations import Continuations
from mmserve.constrained.automaton.limits import MAX_CELLS, MAX_STATES, Work, refuse_size

__all__ = ["determinise"]

_MAX_STEPS = 1_000_000
_Edges = list[tuple[int, int]]
"""Pairs of a bitmask of atoms and a state, the masks apart from each other."""


def determinise(
    pattern: Continuations, masks: list[int], num_atoms: int
) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
    """The table int32 [Q, K] of states after atoms, -1 for none, and bool [Q]: may end there.

    State 0 is the start. No state is dead, since every class has a character.

    Args:
        pattern: what may still come.
        masks: atoms of each class, as a bitmask.
        num_atoms: K.

    Raises ConstraintRefused if it takes too much. Pure.
    """
    edges, is_end = _Subsets(pattern, masks, num_atoms).build()
    table = np.full((len(edges), num_atoms), -1, dtype=np.int32)
    known: dict[int, NDArray[np.int64] | int] = {}
    for state, out in enumerate(edges):
        row = table[state]
        for mask, target in out:
            atoms = known.get(mask)
            if atoms is None:
                atoms = known[mask] = _bits(mask)
            row[atoms] = target
    return table, np.array(is_end, dtype=np.bool_)


class _Subsets:
    def __init__(self, pattern: Continuations, masks: list[int], num_atoms: int) -> None:
        self._pattern = pattern
        self._masks = masks
        self._num_atoms = num_atoms
        self._work = Work("steps to make it deterministic", _MAX_STEPS)
        self._states: dict[tuple[int, ...], int] = {}
        self._todo: list[tuple[int, ...]] = []

    def build(self) -> tuple[list[_Edges], list[bool]]:
        self._state((self._pattern.start,))
        edges: list[_Edges] = []
        is_end: list[bool] = []
        ends = self._pattern.is_end
        for members in self._todo:  # grows while it is read
            is_end.append(any(ends[one] for one in members))
            edges.append(self._edges(members))
        return edges, is_end

    def _state(self, members: Iterable[int]) -> int:
        key = tuple(sorted(members))
        self._work.add(len(key))
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = len(self._todo)
            self._todo.append(key)
            if state >= MAX_STATES:
                refuse_size("states", MAX_STATES)
            if (state + 1) * self._num_atoms > MAX_CELLS:
                refuse_size("pairs of a state and a kind of character", MAX_CELLS)
        return state

    def _edges(self, members: tuple[int, ...]) -> _Edges:
        targets: dict[int, set[int]] = {}
        for one in members:
            nexts = self._pattern.nexts[one]
            self._work.add(len(nexts) + 1)
            for number, after in nexts:
                found = targets.get(number)
                if found is None:
                    targets[number] = {after}
                else:
                    found.add(after)
        seen = overlap = 0
        for number in targets:
            mask = self._masks[number]
            overlap |= seen & mask
            seen |= mask
        if not overlap:
            return [(self._masks[k], self._state(found)) for k, found in targets.items()]
        return [(mask, self._state(found)) for mask, found in self._apart(targets)]

    def _apart(self, targets: dict[int, set[int]]) -> list[tuple[int, set[int]]]:
        """Classes that overlap, cut into pieces that do not."""
        pieces: list[tuple[int, set[int]]] = []
        for number, found in targets.items():
            mask = self._masks[number]
            self._work.add(len(pieces) * (1 + self._num_atoms // 512))
            cut: list[tuple[int, set[int]]] = []
            for old, reached in pieces:
                both = old & mask
                if not both:
                    cut.append((old, reached))
                    continue
                if both != old:
                    cut.append((old ^ both, reached))
                self._work.add(len(reached) + len(found))
                cut.append((both, reached | found))
                mask ^= both
            if mask:
                cut.append((mask, found))
            pieces = cut
        return pieces


def _bits(mask: int) -> NDArray[np.int64] | int:
    if mask & (mask - 1) == 0:
        return mask.bit_length() - 1
    packed = np.frombuffer(mask.to_bytes(-(-mask.bit_length() // 8), "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(packed, bitorder="little"))
