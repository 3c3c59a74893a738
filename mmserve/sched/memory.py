"""KV slots of sequences: what the tree holds, what a sequence holds alone, what is free.

slots of a sequence    [ 0 .. depth )       owned by the tree, pinned through `node`
                       [ depth .. len )     its own, and the rest of its last page
all slots              free + tree + own of every sequence

A prompt's tokens go to the tree when their step is planned, an answer's when it ends; whole
pages only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken, SchedConfig
from mmserve.radix import Match, Node, RadixTree, SlotPool, worth_of
from mmserve.sched.sequence import GrowingArray, Sequence, empty_slots

__all__ = ["KvMemory", "Pending"]

_MAX_AHEAD = 1024
"""Most slots freed ahead of need; evicting so many short leaves is what the slowest one in a
hundred steps of `benchmarks/results/sched_cost.json` does."""


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """Nodes put into the tree for a step that has not run yet, below position `start`."""

    nodes: tuple[Node, ...]
    start: int

    @property
    def leaf(self) -> Node:
        """The lowest of them."""
        return self.nodes[-1]


class KvMemory:
    """Ledger of KV slots. With `radix_cache` off nothing is kept or shared."""

    def __init__(self, num_slots: int, config: SchedConfig) -> None:
        self.is_shared = config.radix_cache
        self.pool = SlotPool(num_slots, config.page_tokens)
        limit = config.history_tokens
        self.tree = RadixTree(
            config.page_tokens,
            worth_of(config.eviction, num_slots),
            num_slots if limit is None else limit,
        )
        self._num_ahead = min(_MAX_AHEAD, num_slots // 32)

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

    def num_room(self, sequence: Sequence, match: Match | None) -> int:
        """Tokens a sequence could take once a match is pinned. Pure."""
        pinned = 0 if match is None else self.tree.num_evictable_in(match)
        return self.num_available - pinned + self._num_left(sequence)

    def num_unwanted(self, sequence: Sequence) -> int:
        """Tokens a waiting sequence could take and evict nothing that any wants. Pure."""
        num_evictable = self.tree.num_evictable - self.tree.num_wanted
        return self.pool.num_free + num_evictable + self._num_left(sequence)

    def num_slots_for(self, num_tokens: int) -> int:
        """Slots of the pages that hold so many tokens. Pure."""
        return num_tokens + -num_tokens % self.pool.page_tokens

    # Guests

    def hang(self, sequence: Sequence) -> None:
        """Hang a sequence where what it may share ends. Changes: the tree, its `hook`."""
        prompt = sequence.spec.prompt
        limit = sequence.match_limit if self.is_shared else 0
        keys = sequence.keys.view(0, limit)
        sequence.hook = self.tree.hang(prompt.namespace, keys, sequence.spec.client)

    def unhang(self, sequence: Sequence) -> None:
        """Take it down, if it hangs. Changes: the tree, its `hook`."""
        if sequence.hook is not None:
            self.tree.unhang(sequence.hook, sequence.spec.client)
            sequence.hook = None

    def mark_above(self, sequence: Sequence) -> tuple[str, int] | None:
        """The mark of a sequence that ended where what is cached of this one ends. Pure."""
        return None if sequence.hook is None else self.tree.mark_above(sequence.hook)

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
        start = sequence.slots.size
        num_new = self.num_slots_for(max(0, num_tokens - self._num_left(sequence)))
        if num_new > self.pool.num_free:
            self._evict(num_new - self.pool.num_free)
        last = sequence.slots[start - 1] if start else None
        sequence.slots.extend(self.pool.allocate(num_tokens, after=last))
        if num_tokens == 1 and start >= sequence.num_prompt:
            return None
        return self._publish(sequence, start)

    def has_next(self, sequence: Sequence) -> bool:
        """Whether there is a slot for one more token. Pure."""
        pool = self.pool
        return bool(pool.num_free or self.tree.num_evictable or self._num_left(sequence))

    def next_slots(self, sequences: Iterable[Sequence]) -> list[int] | None:
        """The slot that each one's next token gets, one after the other, if certain. Pure."""
        return self.pool.foresee([one.slots[one.slots.size - 1] for one in sequences])

    def take_next(self, sequence: Sequence) -> None:
        """A slot for the answer's next token, which is its own. Changes: as `take`."""
        slots, pool = sequence.slots, self.pool
        if not pool.num_free and not self._num_left(sequence):
            self._evict(pool.page_tokens)
        slots.extend(pool.allocate(1, after=slots[slots.size - 1]))

    def _publish(self, sequence: Sequence, start: int) -> Pending | None:
        """Put the whole pages of a sequence's new slots into the tree."""
        node, depth = sequence.node, sequence.depth
        end = self._whole(sequence.slots.size)
        if node is None or depth < self._whole(start) or end <= depth:
            return None
        keys = sequence.keys.view(depth, end)
        if len(self.tree.follow_exactly(node, keys).slots):
            return None
        nodes = self.tree.fill(node, keys, sequence.slots.view(depth, end))
        self.tree.hold(nodes[-1])
        self.tree.unpin(node)
        sequence.node, sequence.depth = nodes[-1], end
        return Pending(nodes, depth)

    def cut(self, sequence: Sequence, num_tokens: int) -> None:
        """Let go of the KV of all tokens from `num_tokens` on, which others will replace.

        Changes: its slots, node and tokens computed; what the tree holds of them stays there.
        """
        num_slots = sequence.slots.size
        if num_tokens >= num_slots:
            return
        node, keep = sequence.node, num_tokens
        if node is not None and num_tokens < sequence.depth:
            keep = self._whole(num_tokens)
            self.pool.give_back(sequence.slots.view(sequence.depth, num_slots))
            above = self.tree.ancestor(node, keep)
            self.tree.hold(above)
            self.tree.unpin(node)
            sequence.node, sequence.depth = above, keep
        else:
            self.pool.give_back(sequence.slots.view(keep, num_slots))
        sequence.slots.cut(keep)
        sequence.computed = min(sequence.computed, keep)

    # A step has run

    def commit(self, sequence: Sequence) -> None:
        """All slots hold KV now. Changes: tokens computed; own prompt tokens go to the tree."""
        start, sequence.computed = sequence.computed, sequence.slots.size
        node = sequence.node
        if node is None or start >= sequence.num_prompt:
            return
        if sequence.depth < self._whole(sequence.computed):
            end = self._absorb(sequence, node)
            sequence.node = self.tree.pin(end)
            self.tree.unpin(node)
            sequence.depth = self._whole(sequence.computed)
        self.tree.tidy(sequence.node or node)

    def undo(self, sequence: Sequence, pending: Pending | None) -> Node | None:
        """Take back the slots a step was to write; its sequence has to end.

        The node above what the step put into the tree, where it stays until `discard`.
        Changes: the sequence, the pool.
        """
        start, num_slots = sequence.computed, sequence.slots.size
        above = None
        if pending is not None:
            above = self.tree.ancestor(pending.leaf, pending.start)
            self.tree.hold(above)
            self.tree.hold(above)  # until `discard`, so that nothing is joined with it
            self.tree.unpin(pending.leaf)
            self.pool.give_back(sequence.slots.view(sequence.depth, num_slots))
            start = min(start, pending.start)
            sequence.node, sequence.depth, sequence.computed = above, pending.start, start
        else:
            self.pool.give_back(sequence.slots.view(start, num_slots))
        sequence.slots = GrowingArray(sequence.slots.view(0, start).copy())
        return above

    def discard(self, pending: Pending, above: Node) -> None:
        """Forget what `undo` left in the tree, unless a neighbour uses it. Changes: both."""
        self.pool.give_back(self.tree.prune(pending.leaf, above))
        self.tree.unpin(above)
        self.tree.tidy(above)

    def release(self, sequence: Sequence) -> None:
        """Let go of all; computed tokens stay findable. Changes: tree, pool, sequence."""
        node = sequence.node
        num_slots = sequence.slots.size
        if node is None:
            self.pool.give_back(sequence.slots.view(0, num_slots))
        else:
            whole = self._whole(sequence.computed)
            end = Match(node, node.num_tokens, node.depth, empty_slots().view(0, 0))
            if sequence.depth < whole:
                end = self._absorb(sequence, node)
            if sequence.is_ended and end.node.depth > sequence.num_prompt:
                self.tree.mark(end, (sequence.spec.client, sequence.sweep))
            self.pool.give_back(sequence.slots.view(max(whole, sequence.depth), num_slots))
            self.tree.unpin(node)
            self.tree.tidy(node)
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
        owned = [node.slots for node in self.tree.nodes() if node.slots is not None]
        owned += [self._own(seq) for seq in live]
        owned.append(self.pool.free_slots())
        owners = np.bincount(np.concatenate(owned), minlength=self.pool.num_slots)
        if len(owners) != self.pool.num_slots or (owners != 1).any():
            lost, doubled = int((owners == 0).sum()), int((owners > 1).sum())
            message = f"{lost} slots have no owner, {doubled} have several"
            raise LedgerBroken(message, lost=lost, doubled=doubled)

    # Inside

    def _evict(self, num_tokens: int) -> None:
        """Free slots, and some more if nobody waits for them, so that not every step evicts."""
        num_unwanted = self.tree.num_evictable - self.tree.num_wanted
        num_ahead = min(self._num_ahead, num_unwanted)
        self.pool.give_back(self.tree.evict(max(num_tokens, num_ahead)))

    def _whole(self, num_tokens: int) -> int:
        return num_tokens - num_tokens % self.pool.page_tokens

    def _num_left(self, sequence: Sequence) -> int:
        return self.pool.num_left_after(sequence.slots.size)

    def _own(self, sequence: Sequence) -> NDArray[np.int64]:
        """A sequence's own slots, with the rest of its last page."""
        num_slots = sequence.slots.size
        own = sequence.slots.view(sequence.depth, num_slots)
        num_left = self._num_left(sequence)
        if not num_left:
            return own
        last = sequence.slots[num_slots - 1]
        return np.concatenate((own, np.arange(last + 1, last + 1 + num_left)))

    def _absorb(self, sequence: Sequence, node: Node) -> Match:
        """Give own computed pages to the tree; where it has them already, use its slots."""
        depth, end = sequence.depth, self._whole(sequence.computed)
        own = sequence.slots.view(depth, end)
        put = self.tree.insert(node, sequence.keys.view(depth, end), own)
        if put.num_existing:
            self.pool.give_back(own[: put.num_existing])
            slots = sequence.slots.view(0, sequence.slots.size).copy()
            slots[depth : depth + put.num_existing] = put.slots
            sequence.slots = GrowingArray(slots)
        return put.end
