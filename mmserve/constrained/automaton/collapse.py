"""Tokens as a pattern sees them: sequences of atoms, so that many tokens are one.

pattern [a-z]{1,9}     the, cat, dog, ...  ->  0 0 0      all of one node
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.atoms import Atoms
from mmserve.constrained.automaton.tokens import TokenTrie
from mmserve.constrained.automaton.utf8 import DEAD

__all__ = ["CollapsedTrie", "collapse"]


@dataclass(frozen=True, slots=True)
class CollapsedTrie:
    """The trie of a vocabulary's tokens over atoms. Nodes are numbered by depth.

    Args:
        parent: int32 [N]; -1 for node 0, the root.
        atom: int32 [N] the last atom of each node.
        child: int32 [N + 1]; children of node n are `[child[n], child[n + 1])`.
        level: first node of each depth; ends with N.
        tail_node, tail_inside: int32 [T] a node, and how far into a character after it: pairs
            that tokens end at which end inside of a character.
        place: int32 [num_words * 32] where each token ends: a node, N + t for tail t, or N + T
            for tokens that never fit.
    """

    parent: NDArray[np.int32]
    atom: NDArray[np.int32]
    child: NDArray[np.int32]
    level: tuple[int, ...]
    tail_node: NDArray[np.int32]
    tail_inside: NDArray[np.int32]
    place: NDArray[np.int32]

    @property
    def num_bytes(self) -> int:
        """Memory of the arrays."""
        return sum(
            one.nbytes for one in (self.parent, self.atom, self.child, self.place)
        ) + 8 * len(self.tail_node)


def collapse(trie: TokenTrie, atoms: Atoms, nodes: NDArray[np.int32]) -> CollapsedTrie:
    """The tokens of a vocabulary over the atoms of a pattern.

    Args:
        trie: the vocabulary's tokens over characters.
        atoms: the pattern's atoms.
        nodes: what `utf8.byte_nodes` says of these atoms.

    Pure. Cost: a few milliseconds for 50,000 tokens.
    """
    names, parent, atom, level = _collapsed_nodes(trie, atoms)
    num_nodes = level[-1]
    counts = np.bincount(parent[1:], minlength=num_nodes)
    child = np.concatenate(([1], 1 + np.cumsum(counts))).astype(np.int32)
    tails: dict[tuple[int, int], int] = {}
    ends: list[tuple[int, int]] = []
    for token_id, node, tail in trie.tails:
        inside, name = _inside(nodes, tail), int(names[node])
        if inside > 0 and name >= 0:
            ends.append((token_id, tails.setdefault((name, inside), len(tails))))
    never = num_nodes + len(tails)
    place = np.where(trie.node >= 0, names[trie.node], -1)
    place = np.where(place >= 0, place, never).astype(np.int32)
    for token_id, order in ends:
        place[token_id] = num_nodes + order
    pairs = np.array(list(tails), dtype=np.int32).reshape(-1, 2)
    return CollapsedTrie(
        parent, atom, child, level, pairs[:, 0].copy(), pairs[:, 1].copy(), place
    )


def _collapsed_nodes(
    trie: TokenTrie, atoms: Atoms
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], tuple[int, ...]]:
    """The new name of each node, -1 for none; parents, atoms and levels of the new ones."""
    kinds = atoms.of(trie.codes)
    width = max(atoms.num_atoms, 1)
    names = np.full(len(trie.parent), -1, dtype=np.int32)
    names[0] = 0
    parents = [np.array([-1], dtype=np.int32)]
    letters = [np.array([0], dtype=np.int32)]
    level = [0, 1]
    for first, past in zip(trie.level[1:], trie.level[2:], strict=False):
        above = names[trie.parent[first:past]]
        kind = kinds[trie.character[first:past]]
        fits = np.flatnonzero((above >= 0) & (kind >= 0))
        if not len(fits):
            break
        steps = (above[fits] - level[-2]).astype(np.int64) * width + kind[fits]
        fresh, order = _distinct(steps, (level[-1] - level[-2]) * width)
        names[first + fits] = level[-1] + order
        parents.append((fresh // width + level[-2]).astype(np.int32))
        letters.append((fresh % width).astype(np.int32))
        level.append(level[-1] + len(fresh))
    return names, np.concatenate(parents), np.concatenate(letters), tuple(level)


def _distinct(
    values: NDArray[np.int64], bound: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Distinct values in [0, bound), sorted, and the place of each value among them."""
    if bound > 16 * len(values) + 4096:
        fresh, order = np.unique(values, return_inverse=True)
        return fresh, order
    is_there = np.zeros(bound, dtype=np.bool_)  # sorting takes four times as long
    is_there[values] = True
    return np.flatnonzero(is_there), np.cumsum(is_there)[values] - 1


def _inside(nodes: NDArray[np.int32], tail: bytes) -> int:
    """The node after the first bytes of a character; 0 if none has them."""
    inside = 0
    for byte in tail:
        inside = int(nodes[inside, byte])
        if inside == DEAD:
            return 0
    return inside
