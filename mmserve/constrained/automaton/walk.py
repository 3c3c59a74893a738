"""Which tokens may come in a state: a walk over the collapsed trie, level by level.

Where few nodes are reached only their children are looked at, one by one if there are only a
handful; else a whole level is, which is cheaper for each node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.collapse import CollapsedTrie

__all__ = ["TokenWalk"]

_FEW = 16  # below this many, single nodes cost less than calls of numpy
_MANY = 16  # looking at each token costs a sixteenth of writing it alone


class TokenWalk:
    """Walks over one trie with one table. Never changes.

    Args:
        table: int32 [Q + 1, K] states after atoms; Q stands for none and leads to itself.
        trie: the tokens.
        below: for each node of UTF-8, the atoms of the characters that go through it.
    """

    def __init__(
        self, table: NDArray[np.int32], trie: CollapsedTrie, below: Sequence[frozenset[int]]
    ) -> None:
        self._table = table
        self._flat = table.ravel()
        self._dead = len(table) - 1
        self._width = table.shape[1]
        self._trie = trie
        self._below = below
        self._insides: list[int] = trie.tail_inside.tolist()
        self._child, self._atom = trie.child.data, trie.atom.data
        self._following = self._flat.data
        num_places = trie.level[-1] + len(trie.tail_node)
        self._num_tokens = len(trie.place)
        fitting = np.flatnonzero(trie.place < num_places)
        places = trie.place[fitting]
        self._tokens = fitting[np.argsort(places)].astype(np.int32)
        counts = np.bincount(places, minlength=num_places)
        self._first = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        self._has_tokens = counts > 0

    @property
    def num_bytes(self) -> int:
        """Memory of what is held beside the table."""
        return self._trie.num_bytes + self._tokens.nbytes + 5 * len(self._first)

    def fits(self, state: int) -> NDArray[np.bool_]:
        """Which tokens may come, bool [num_words * 32]. Pure."""
        states = np.full(self._trie.level[-1], self._dead, dtype=np.int32)
        states[0] = state
        reached = self._reach(states)
        places = np.concatenate((reached[self._has_tokens[reached]], self._tails(states)))
        starts = self._first[places]
        counts = self._first[places + 1] - starts
        num_fitting = int(counts.sum())
        if _MANY * num_fitting > self._num_tokens:
            is_reached = np.zeros(len(self._first), dtype=np.bool_)
            is_reached[places] = True
            return is_reached[self._trie.place]
        before = np.cumsum(counts) - counts
        chosen = np.repeat(starts - before, counts) + np.arange(num_fitting)
        fits = np.zeros(self._num_tokens, dtype=np.bool_)
        fits[self._tokens[chosen]] = True
        return fits

    def _reach(self, states: NDArray[np.int32]) -> NDArray[np.int64]:
        """The nodes below the root that can be reached. Changes: their `states`."""
        level = self._trie.level
        alive: Sequence[int] | NDArray[np.int64] = (0,)
        found: list[Sequence[int] | NDArray[np.int64]] = []
        for first, past in pairwise(level[1:]):
            if len(alive) <= _FEW and self._num_children(alive) <= _FEW:
                alive = self._children_of_few(alive, states)
            else:
                alive = self._children(np.asarray(alive), first, past, states)
            if not len(alive):
                break
            found.append(alive)
        return np.concatenate([*found, np.empty(0, dtype=np.int64)], dtype=np.int64)

    def _num_children(self, alive: Iterable[int]) -> int:
        child = self._child
        return sum(child[node + 1] - child[node] for node in alive)

    def _children_of_few(self, alive: Iterable[int], states: NDArray[np.int32]) -> list[int]:
        """Those below some nodes that are reached; 0.4 us each. Changes: their `states`."""
        child, atom, following = self._child, self._atom, self._following
        found = []
        state_of = states.data
        for node in alive:
            row = state_of[node] * self._width
            for below in range(child[node], child[node + 1]):
                state = following[row + atom[below]]
                if state != self._dead:
                    state_of[below] = state
                    found.append(below)
        return found

    def _children(
        self, alive: NDArray[np.int64], first: int, past: int, states: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Those of the level `[first, past)` below some nodes that are reached.

        Changes: their `states`. Cost: 7 us, and a few nanoseconds for each node looked at.
        """
        trie, flat, width = self._trie, self._flat, self._width
        starts = trie.child[alive]
        counts = trie.child[alive + 1] - starts
        ends = np.cumsum(counts)
        num_children = int(ends[-1])
        if 2 * num_children > past - first:
            reached = flat[states[trie.parent[first:past]] * width + trie.atom[first:past]]
            states[first:past] = reached
            return first + np.flatnonzero(reached != self._dead)
        below = np.repeat(starts - ends + counts, counts) + np.arange(num_children)
        reached = flat[states[trie.parent[below]] * width + trie.atom[below]]
        states[below] = reached
        alive_below: NDArray[np.int64] = below[reached != self._dead]
        return alive_below

    def _tails(self, states: NDArray[np.int32]) -> NDArray[np.int64]:
        """Places of tokens that end inside of a character which can be completed."""
        known: dict[int, set[int]] = {}
        found = []
        reached = states[self._trie.tail_node].tolist()
        for order, (state, inside) in enumerate(zip(reached, self._insides, strict=True)):
            if state == self._dead:
                continue
            alive = known.get(state)
            if alive is None:
                row = self._table[state]
                alive = known[state] = set(np.flatnonzero(row != self._dead).tolist())
            if not alive.isdisjoint(self._below[inside]):
                found.append(self._trie.level[-1] + order)
        return np.array(found, dtype=np.int64)
