r"""Tokens that a state takes or leaves by their length alone.

A state of `[\w ]{1,80}` leads to one state by all of `[\w ]`, which does so again, 80 times. So
tokens of nothing but `[\w ]`, most of a vocabulary, fit if they are short enough, and only the
others are walked:

    state 3 of 80    length of pure tokens <= 77   |   walk over  ."   a.   "}   ...
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.collapse import CollapsedTrie
from mmserve.constrained.automaton.walk import TokenWalk

__all__ = ["TokenSlice", "make_slices"]

_MAX_SLICES = 3
_MAX_TRIED = 6
_MIN_TOKENS = 1_000
"""Walking fewer tokens takes less time than a slice saves."""
_MAX_LENGTH = 255


class TokenSlice:
    """The tokens of some atoms only, and a walk over all others. Never changes.

    Args:
        table: int32 [Q + 1, K] states after atoms; Q stands for none and leads to itself.
        trie: all tokens.
        below: for each node of UTF-8, the atoms of the characters that go through it.
        is_inside: bool [K] the atoms of the slice.
        length: uint8 [N] characters of nodes whose characters are all of these; 0 for others.
    """

    def __init__(
        self,
        table: NDArray[np.int32],
        trie: CollapsedTrie,
        below: Sequence[frozenset[int]],
        is_inside: NDArray[np.bool_],
        length: NDArray[np.uint8],
    ) -> None:
        self._lengths = _by_token(trie, length)
        self.num_tokens = int((self._lengths > 0).sum())
        self._num_steps = _num_steps(table, is_inside, int(self._lengths.max(initial=0)))
        self._others = TokenWalk(table, _others(trie, length), below)

    def applies(self, state: int) -> bool:
        """Whether in this state the slice's tokens fit by their length alone. Pure."""
        return bool(self._num_steps[state] > 0)

    def fits(self, state: int) -> NDArray[np.bool_]:
        """Which tokens may come, bool [num_words * 32], if the slice applies. Pure."""
        # length 0, of other tokens, wraps around to the largest
        fits: NDArray[np.bool_] = self._lengths - np.uint8(1) < self._num_steps[state]
        return fits | self._others.fits(state)

    @property
    def num_bytes(self) -> int:
        """Memory of what is held beside the table."""
        return self._lengths.nbytes + self._num_steps.nbytes + self._others.num_bytes


def make_slices(
    table: NDArray[np.int32],
    trie: CollapsedTrie,
    below: Sequence[frozenset[int]],
    num_first: NDArray[np.int64],
) -> list[TokenSlice]:
    """The slices that are worth their memory, those of most tokens first.

    Args:
        table: as in `TokenSlice`.
        trie: all tokens.
        below: as in `TokenSlice`.
        num_first: int64 [K] how many tokens begin with each atom.

    Pure.
    """
    dead = len(table) - 1
    num_states: dict[bytes, int] = {}
    for row in table[:-1]:
        for target in np.unique(row[row != dead]).tolist():
            is_inside = row == target
            if num_first[is_inside].sum() >= _MIN_TOKENS:
                key = is_inside.tobytes()
                num_states[key] = num_states.get(key, 0) + 1
    sets = [np.frombuffer(key, dtype=np.bool_) for key in num_states]
    worth = [
        int(num_first[one].sum()) * count
        for one, count in zip(sets, num_states.values(), strict=True)
    ]
    made: list[TokenSlice] = []
    for order in sorted(range(len(sets)), key=lambda order: -worth[order])[:_MAX_TRIED]:
        length = _pure_lengths(trie, sets[order])
        if (_by_token(trie, length) > 0).sum() >= _MIN_TOKENS and len(made) < _MAX_SLICES:
            made.append(TokenSlice(table, trie, below, sets[order], length))
    return sorted(made, key=lambda one: -one.num_tokens)


def _pure_lengths(trie: CollapsedTrie, is_inside: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Characters uint8 of nodes whose characters are all of some atoms; 0 for others."""
    length = np.zeros(trie.level[-1], dtype=np.uint8)
    pure = is_inside[trie.atom]
    pure[0] = True
    for depth, (first, past) in enumerate(zip(trie.level[1:], trie.level[2:], strict=False), 1):
        pure[first:past] &= pure[trie.parent[first:past]]
        if depth > _MAX_LENGTH or not pure[first:past].any():
            break  # longer tokens are walked as others are
        length[first:past] = pure[first:past] * np.uint8(depth)
    return length


def _by_token(trie: CollapsedTrie, length: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The lengths of nodes as lengths of tokens, 0 for those that end elsewhere."""
    elsewhere = np.zeros(len(trie.tail_node) + 1, dtype=np.uint8)
    return np.concatenate((length, elsewhere))[trie.place]


def _num_steps(
    table: NDArray[np.int32], is_inside: NDArray[np.bool_], longest: int
) -> NDArray[np.uint8]:
    """How long tokens of some atoms may be in each state, uint8 [Q + 1].

    0 where that depends on the token, or none may come.
    """
    dead, mixed = len(table) - 1, len(table)
    inside = table[:, is_inside]
    is_one = (inside == inside[:, :1]).all(axis=1)
    following = np.append(np.where(is_one, inside[:, 0], mixed), mixed)
    state = np.arange(len(table))
    steps = np.zeros(len(table), dtype=np.uint8)
    for _ in range(longest):
        state = following[state]
        steps += (state != dead) & (state != mixed)
    steps[state == mixed] = 0
    return steps


def _others(trie: CollapsedTrie, length: NDArray[np.uint8]) -> CollapsedTrie:
    """The trie without the tokens of the slice, and without the nodes that only they need."""
    num_nodes = trie.level[-1]
    never = num_nodes + len(trie.tail_node)
    place = np.where(_by_token(trie, length) > 0, never, trie.place)
    is_needed = np.zeros(never + 1, dtype=np.bool_)
    is_needed[place] = True
    is_needed[trie.tail_node] = True
    is_needed[0] = True
    for first, past in zip(trie.level[-2:0:-1], trie.level[:1:-1], strict=False):
        below = first + np.flatnonzero(is_needed[first:past])
        is_needed[trie.parent[below]] = True
    kept = np.flatnonzero(is_needed[:num_nodes])
    names = np.zeros(never + 1, dtype=np.int32)
    names[kept] = np.arange(len(kept))
    names[num_nodes:] = len(kept) + np.arange(len(trie.tail_node) + 1)
    parent = names[trie.parent[kept]]
    parent[0] = -1
    counts = np.bincount(parent[1:], minlength=len(kept))
    level = np.searchsorted(kept, trie.level)
    return CollapsedTrie(
        parent,
        trie.atom[kept],
        np.concatenate(([1], 1 + np.cumsum(counts))).astype(np.int32),
        tuple(level[: int(np.searchsorted(level, len(kept))) + 1].tolist()),
        names[trie.tail_node],
        trie.tail_inside,
        names[place],
    )
