"""KV slots of sequences: what the tree holds, what a sequence holds alone, what is free.

slots of a sequence    [ 0 .. depth )       owned by the tree, pinned through `node`
                       [ depth .. len )     its own
all slots              free + tree + own of every sequence

A prompt's tokens go to the tree when their step is planned, an answer's when it ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from mmserve.core import LedgerBroken
from mmserve.radix import Match, Node, RadixTree, SlotPool
from mmserve.sched.sequence import GrowingArray, Sequence, empty_slots

__all__ = ["KvMemory", "Pending"]


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A leaf put into the tree for a step that has not run yet, and the node above it."""

    leaf: Node
    above: Node


class KvMemory:
    """Ledger of KV slots. With `is_shared` false nothing is kept or shared: no tree is used."""

    def __init__(self, num_slots: int, page_tokens: int, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.pool = SlotPool(num_slots)
        self.tree = RadixTree(page_tokens)

    # Questions

    @property
    def num_available(self) -> int:
        """Slots that are free or can be made so. Pure."""
        return self.pool.num_free + self.tree.num_evictable

    def look(self, sequence: Sequence) -> Match | None:
        """How far the tree takes a sequence from where it is; None if it may not look. Pure."""
        if not self.is_shared or sequence.depth < sequence.computed:
            return None
        limit = sequence.match_limit
        keys = sequence.keys.view(0, limit)
        if sequence.node is None:
            namespace = sequence.spec.prompt.namespace
            return self.tree.match(namespace, keys, limit, sequence.atomic)
        return self.tree.follow(sequence.node, keys, sequence.computed, limit, sequence.atomic)

    def num_cached(self, sequence: Sequence) -> int:
        """Tokens that `look` finds, counted from the start. Pure."""
        match = self.look(sequence)
        return 0 if match is None else match.num_tokens

    def num_available_after(self, match: Match | None) -> int:
        """Slots left to take once a match is pinned. Pure."""
        pinned = 0 if match is None else self.tree.num_evictable_in(match)
        return self.num_available - pinned

    # A step is planned

    def advance(self, sequence: Sequence, match: Match | None) -> None:
        """Take over matched tokens. Changes: pins, the sequence's slots and tokens computed."""
        if match is None:
            return
        if sequence.node is not None and not len(match.slots):
            return
        node = self.tree.pin(match)
        if sequence.node is not None:
            self.tree.unpin(sequence.node)
        sequence.node = node
        sequence.slots.extend(match.slots)
        sequence.computed = sequence.depth = match.num_tokens

    def take(self, sequence: Sequence, num_tokens: int) -> Pending | None:
        """Slots for the next tokens; prompt tokens go into the tree at once, to be shared.

        Changes: evicts if need be; the sequence's slots, depth and node.
        """
        start = len(sequence.slots)
        if num_tokens > self.pool.num_free:
            self.pool.give_back(self.tree.evict(num_tokens - self.pool.num_free))
        last = sequence.slots[start - 1] if start else None
        slots = self.pool.allocate(num_tokens, after=last)
        sequence.slots.extend(slots)
        node = sequence.node
        is_prompt = start < sequence.num_prompt or num_tokens > 1
        if node is None or sequence.depth < start or not is_prompt:
            return None
        if sequence.keys[start] in node.children:
            return None
        keys = sequence.keys.view(start, start + num_tokens)
        leaf = self.tree.grow(node, keys, slots)
        self.tree.hold(leaf)
        self.tree.unpin(node)
        sequence.node, sequence.depth = leaf, start + num_tokens
        return Pending(leaf, node)

    # A step has run

    def commit(self, sequence: Sequence) -> None:
        """All slots hold KV now. Changes: tokens computed; own prompt tokens go to the tree."""
        start, sequence.computed = sequence.computed, len(sequence.slots)
        node = sequence.node
        has_own = sequence.depth < sequence.computed
        if node is None or not has_own or start >= sequence.num_prompt:
            return
        end = self._absorb(sequence, node)
        sequence.node = self.tree.pin(end)
        self.tree.unpin(node)
        sequence.depth = sequence.computed

    def undo(self, sequence: Sequence, pending: Pending | None) -> None:
        """Take back the slots a step was to write. Changes: the sequence, the pool.

        Slots that went to the tree stay there until `discard`.
        """
        start = sequence.computed
        if pending is not None:
            self.tree.hold(pending.above)
            self.tree.unpin(pending.leaf)
            sequence.node, sequence.depth = pending.above, start
        else:
            self.pool.give_back(sequence.slots.view(start, len(sequence.slots)))
        sequence.slots = GrowingArray(sequence.slots.view(0, start).copy())

    def discard(self, pending: Pending) -> None:
        """Forget what `undo` left in the tree, unless a neighbour uses it. Changes: both."""
        self.pool.give_back(self.tree.prune(pending.leaf, pending.above))

    def release(self, sequence: Sequence) -> None:
        """Let go of all; computed tokens stay findable. Changes: tree, pool, sequence."""
        node = sequence.node
        num_slots = len(sequence.slots)
        if node is None:
            self.pool.give_back(sequence.slots.view(0, num_slots))
        else:
            if sequence.depth < sequence.computed:
                self._absorb(sequence, node)
            self.pool.give_back(sequence.slots.view(sequence.computed, num_slots))
            self.tree.unpin(node)
        sequence.slots, sequence.node = empty_slots(), None
        sequence.computed = sequence.depth = 0

    def flush(self) -> None:
        """Forget all KV that is not pinned. Changes: tree, pool."""
        self.pool.give_back(self.tree.evict(self.tree.num_evictable))

    def verify(self, sequences: Iterable[Sequence]) -> None:
        """Raise LedgerBroken unless every slot has exactly one owner. Pure."""
        live = list(sequences)
        self.pool.verify()
        self.tree.verify(seq.node for seq in live if seq.node is not None)
        owned = [node.slots for node in self.tree.nodes()]
        owned += [seq.slots.view(seq.depth, len(seq.slots)) for seq in live]
        owned.append(self.pool.free_slots())
        owners = np.bincount(np.concatenate(owned), minlength=self.pool.num_slots)
        if len(owners) != self.pool.num_slots or (owners != 1).any():
            lost, doubled = int((owners == 0).sum()), int((owners > 1).sum())
            message = f"{lost} slots have no owner, {doubled} have several"
            raise LedgerBroken(message, lost=lost, doubled=doubled)

    def _absorb(self, sequence: Sequence, node: Node) -> Match:
        """Give own computed tokens to the tree; where it has them already, use its slots."""
        depth, computed = sequence.depth, sequence.computed
        own = sequence.slots.view(depth, computed)
        put = self.tree.insert(node, sequence.keys.view(depth, computed), own)
        if put.num_existing:
            self.pool.give_back(own[: put.num_existing])
            slots = sequence.slots.view(0, len(sequence.slots)).copy()
            slots[depth : depth + put.num_existing] = put.slots
            sequence.slots = GrowingArray(slots)
        return put.end
