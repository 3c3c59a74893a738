"""The automaton of a regex: a minimal table over atoms, and bytes to atoms beside it.

state = q * U + u      q: what came before this character     u: how far into it, 0 if not

bytes  "a" "п"         (0, 0) --61--> (1, 0) --d0--> (1, 3) --bf--> (2, 0)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.automaton.atoms import Atoms
from mmserve.constrained.automaton.collapse import collapse
from mmserve.constrained.automaton.labels import label, quoted
from mmserve.constrained.automaton.machine import MAX_FORCED, Edge
from mmserve.constrained.automaton.slices import make_slices
from mmserve.constrained.automaton.tokens import TokenTrie
from mmserve.constrained.automaton.utf8 import DEAD, byte_nodes
from mmserve.constrained.automaton.walk import TokenWalk

__all__ = ["CharacterMachine"]

_MAX_KNOWN = 4096


class CharacterMachine:
    """A `Machine` over characters. Never changes but for what is remembered.

    Args:
        table: int32 [Q, K] states after atoms, -1 for none; no state is dead.
        is_end: bool [Q].
        atoms: which atom a character belongs to.
        trie: the tokens of the vocabulary.
    """

    def __init__(
        self,
        table: NDArray[np.int32],
        is_end: NDArray[np.bool_],
        atoms: Atoms,
        trie: TokenTrie,
    ) -> None:
        num_states, self._width = int(table.shape[0]), int(table.shape[1])
        self._atoms = atoms
        self._nodes = byte_nodes(atoms)
        self._num_nodes = len(self._nodes)
        dead = np.full((1, self._width), num_states, dtype=np.int32)
        self._table = np.concatenate((np.where(table < 0, num_states, table), dead))
        self._num_states = num_states
        self._next = self._table.ravel().data
        self._byte = self._nodes.ravel().data
        self._is_end = list(map(bool, is_end))
        self._has_next = [bool(row.any()) for row in table >= 0]
        self._below = _atoms_below(self._nodes)
        self._insides = trie.insides
        self._num_tokens = len(trie.node)
        collapsed = collapse(trie, atoms, self._nodes)
        self._walk = TokenWalk(self._table, collapsed, self._below)
        kinds = atoms.of(trie.codes)
        num_first = np.zeros(self._width + 1, dtype=np.int64)
        np.add.at(num_first, kinds, trie.num_first)  # the last counts characters of no atom
        self._slices = make_slices(self._table, collapsed, self._below, num_first[:-1])
        self._known: dict[int, bytes] = {}

    @property
    def start(self) -> int:
        """See `Machine`."""
        return 0

    @property
    def num_states(self) -> int:
        """States between characters."""
        return self._num_states

    @property
    def is_sliced(self) -> bool:
        """Whether some tokens are told by their length alone."""
        return bool(self._slices)

    @property
    def num_bytes(self) -> int:
        """See `Machine`."""
        arrays = self._table.nbytes + self._nodes.nbytes + self._walk.num_bytes
        arrays += sum(one.num_bytes for one in self._slices)
        return arrays + 24 * len(self._atoms.low) + 160 * len(self._known)

    def after(self, state: int, piece: bytes) -> int | None:
        """See `Machine`. Pure."""
        num_nodes, width, dead = self._num_nodes, self._width, self._num_states
        to_node, to_state = self._byte, self._next
        before, inside = divmod(state, num_nodes)
        for byte in piece:  # about 60 ns each, which is what accepting a token costs
            inside = to_node[inside * 256 + byte]
            if inside >= num_nodes:
                before = to_state[before * width + inside - num_nodes]
                if before == dead:
                    return None
                inside = 0
            elif inside < 0:
                return None
        if inside and not self._open_goals(before, {inside}):
            return None
        return int(before * num_nodes + inside)

    def next_bytes(self, state: int) -> bytes:
        """See `Machine`. Pure."""
        found = self._known.get(state)
        if found is None:
            before, inside = divmod(state, self._num_nodes)
            goals = self._nodes[inside].tolist()
            open_goals = self._open_goals(before, {*goals} - {DEAD})
            found = bytes(byte for byte, goal in enumerate(goals) if goal in open_goals)
            if len(self._known) >= _MAX_KNOWN:
                self._known = {}
            self._known[state] = found
        return found

    def forced(self, state: int) -> bytes:
        """See `Machine`. Pure."""
        found = bytearray()
        num_nodes, width = self._num_nodes, self._width
        before, inside = divmod(state, num_nodes)
        while len(found) < MAX_FORCED and (inside or not self._is_end[before]):
            ways = self.next_bytes(before * num_nodes + inside)
            if len(ways) != 1:
                break
            found += ways
            inside = self._byte[inside * 256 + ways[0]]
            if inside >= num_nodes:
                before = self._next[before * width + inside - num_nodes]
                inside = 0
        return bytes(found)

    def is_accepting(self, state: int) -> bool:
        """See `Machine`."""
        before, inside = divmod(state, self._num_nodes)
        return not inside and self._is_end[before]

    def is_final(self, state: int) -> bool:
        """See `Machine`."""
        before, inside = divmod(state, self._num_nodes)
        return not inside and self._is_end[before] and not self._has_next[before]

    def mask(self, state: int) -> NDArray[np.uint32]:
        """See `Machine`. Pure."""
        before, inside = divmod(state, self._num_nodes)
        if inside:
            fits = np.zeros(self._num_tokens, dtype=np.bool_)
            fits[
                [one for one, piece in self._insides if self.after(state, piece) is not None]
            ] = True
        else:
            chosen = (one for one in self._slices if one.applies(before))
            fits = next(chosen, self._walk).fits(before)
        return np.packbits(fits, bitorder="little").view("<u4")

    def edges(self, state: int) -> tuple[Edge, ...]:
        """See `Machine`. Pure."""
        before, inside = divmod(state, self._num_nodes)
        if inside:
            targets = {
                byte: self.after(state, bytes((byte,))) for byte in self.next_bytes(state)
            }
            return tuple(
                Edge(f"<{byte:02x}>", goal, 0)
                for byte, goal in targets.items()
                if goal is not None
            )
        text = self._forced_text(state)
        if text:
            goal = self.after(state, text.encode())
            return (Edge(quoted(text), -1 if goal is None else goal, len(text)),)
        by_target: dict[int, set[int]] = {}
        for atom, target in enumerate(self._table[before].tolist()):
            if target < self._num_states:
                by_target.setdefault(target, set()).add(atom)
        sets = [(self._atoms.ranges(some), target) for target, some in by_target.items()]
        return tuple(
            Edge(label(ranges), target * self._num_nodes) for ranges, target in sorted(sets)
        )

    def _forced_text(self, state: int) -> str:
        """The whole characters that must come."""
        return self.forced(state).decode(errors="ignore")

    def _open_goals(self, before: int, goals: set[int]) -> set[int]:
        """Nodes and atoms, as nodes say them, from which some character can be completed."""
        row = self._table[before]
        alive = frozenset(np.flatnonzero(row != self._num_states).tolist())
        num_nodes = self._num_nodes
        return {
            goal
            for goal in goals
            if (goal - num_nodes in alive)
            or (goal < num_nodes and not alive.isdisjoint(self._below[goal]))
        }


def _atoms_below(nodes: NDArray[np.int32]) -> list[frozenset[int]]:
    """For each node, the atoms of the characters that go through it."""
    num_nodes = len(nodes)
    goals = [set(row) for row in nodes.tolist()]
    found: dict[int, frozenset[int]] = {}

    def below(node: int) -> frozenset[int]:
        known = found.get(node)
        if known is None:
            atoms = {goal - num_nodes for goal in goals[node] if goal >= num_nodes}
            atoms.update(*(below(goal) for goal in goals[node] if 0 < goal < num_nodes))
            known = found[node] = frozenset(atoms)
        return known

    return [below(node) for node in range(num_nodes)]
