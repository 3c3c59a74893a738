"""An automaton said in full, byte by byte: for drawings, statistics and tests."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.automaton import Automaton
from mmserve.constrained.automaton.minimise import minimise

__all__ = ["ByteTable", "byte_table"]


@dataclass(frozen=True, slots=True)
class ByteTable:
    """The smallest automaton over bytes with the same texts; state 0 is the start.

    Args:
        table: int32 [S, 256] states after bytes, -1 for none.
        is_end: bool [S] whether a text may end there.
    """

    table: NDArray[np.int32]
    is_end: NDArray[np.bool_]

    @property
    def num_states(self) -> int:
        """States."""
        return len(self.table)

    @property
    def num_edges(self) -> int:
        """Pairs of a state and one that follows it by some byte."""
        return sum(map(len, self._following()))

    @property
    def num_kept(self) -> tuple[int, int]:
        """States and edges that are left once chains of a single way on are one edge each."""
        following = self._following()
        kept = [
            state
            for state, ways in enumerate(following)
            if state == 0 or self.is_end[state] or len(ways) != 1 or self._num_bytes(state) > 1
        ]
        return len(kept), sum(len(following[state]) for state in kept)

    def _following(self) -> list[set[int]]:
        return [set(row) - {-1} for row in self.table.tolist()]

    def _num_bytes(self, state: int) -> int:
        return int((self.table[state] >= 0).sum())


def byte_table(automaton: Automaton, max_states: int = 20_000) -> ByteTable | None:
    """The automaton said in full; None if more than so many states are reached.

    Pure. Cost: about 0.1 ms a state.
    """
    names = {automaton.start: 0}
    todo = [automaton.start]
    rows: list[NDArray[np.int32]] = []
    for state in todo:  # grows while it is read
        row = np.full(256, -1, dtype=np.int32)
        for byte in automaton.next_bytes(state):
            goal = automaton.after(state, bytes((byte,)))
            if goal is None:
                continue
            if goal not in names:
                names[goal] = len(todo)
                todo.append(goal)
            row[byte] = names[goal]
        if len(todo) > max_states:
            return None
        rows.append(row)
    is_end = np.array([automaton.is_accepting(state) for state in todo], dtype=np.bool_)
    table, is_end, _ = minimise(np.stack(rows), is_end)
    return ByteTable(table, is_end)
