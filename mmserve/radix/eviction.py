"""Which leaf goes first when slots are needed.

    lru    the one not used for the longest time
    lfu    the one hit least often, then as lru
    slru   those never hit before those hit lately (segmented LRU)
    cost   the one whose tokens are cheapest to make again for each slot they hold, ageing

Leaves that a waiting sequence will want go after all others.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from mmserve.core import Eviction
from mmserve.radix.node import Node

__all__ = ["LeafQueue", "Worth", "worth_of"]

_MEDIA_COST = 4.0
"""Making a picture token again, encoder included, against a text token: about 3 to 5 for
LLaVA-1.5 shapes."""
_DEPTH_TOKENS = 4096
"""Tokens before it after which a token costs twice as much, for attention."""


class Worth(Protocol):
    """What a leaf is worth keeping; the least goes first."""

    def rate(self, node: Node) -> float:
        """Worth after a use. Pure."""
        ...

    def aged(self, node: Node) -> float:
        """Worth now, if no use has changed it; never more than before. Pure."""
        ...

    def note_evicted(self, node: Node) -> None:
        """A node went. Changes: what ageing knows."""
        ...


class _Recency:
    """Every leaf is worth the same, so that the tick of its last use decides."""

    def rate(self, node: Node) -> float:  # noqa: ARG002  (all the same)
        return 0.0

    def aged(self, node: Node) -> float:
        return node.worth

    def note_evicted(self, node: Node) -> None:
        pass


class _Frequency(_Recency):
    """Hits."""

    def rate(self, node: Node) -> float:
        return float(node.hits)


class _Segments(_Recency):
    """1 for a leaf hit within the last pool's worth of evictions, else 0.

    Source: Caching strategies to improve disk system performance (Karedla, 1994); there the
    protected segment has a size, here an age, so that moving between them costs nothing.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._num_evicted = 0
        self._newest_tick = 0
        self._cutoff_tick = 0

    def rate(self, node: Node) -> float:
        self._newest_tick = max(self._newest_tick, node.stamp)
        return 1.0 if node.hits else 0.0

    def aged(self, node: Node) -> float:
        return node.worth if node.stamp >= self._cutoff_tick else 0.0

    def note_evicted(self, node: Node) -> None:
        self._num_evicted += node.num_tokens
        if self._num_evicted >= self._num_slots:
            self._num_evicted, self._cutoff_tick = 0, self._newest_tick


class _Cost(_Recency):
    """Cost to make its tokens again for each slot, times uses, above what went last.

    Source: Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy
    (Cherkasova, 1998); size is slots, cost is prefill with its attention, and encoding.
    """

    def __init__(self) -> None:
        self._floor = 0.0

    def rate(self, node: Node) -> float:
        num_media = int((node.keys < 0).sum())
        cost = node.num_tokens * (1 + node.depth / _DEPTH_TOKENS) + _MEDIA_COST * num_media
        return self._floor + (1 + node.hits) * cost / max(node.num_tokens, 1)

    def note_evicted(self, node: Node) -> None:
        self._floor = max(self._floor, node.worth)


def worth_of(name: Eviction, num_slots: int) -> Worth:
    """The policy of a name, for a pool of `num_slots`."""
    if name == "slru":
        return _Segments(num_slots)
    return {"lru": _Recency, "lfu": _Frequency, "cost": _Cost}[name]()


class LeafQueue:
    """Unpinned leaves, least worth first, then by the tick of their last use.

    Entries are not taken out when a leaf is pinned, used again or gone; they are passed over
    when popped, and swept when they are many.
    """

    def __init__(self, worth: Worth) -> None:
        self.worth = worth
        self._entries: list[tuple[float, int, int, Node]] = []
        self._wanted: list[tuple[float, int, int, Node]] = []
        self._serial = 0

    def offer(self, node: Node, num_nodes: int) -> None:
        """A leaf may be evicted from now on; `num_nodes` is the size of the tree.

        Changes: the queue. Cost: O(log n), and a sweep now and then.
        """
        for heap in (self._entries, self._wanted):
            if len(heap) > 64 + 4 * num_nodes:
                heap[:] = [entry for entry in heap if _is_current(entry)]
                heapq.heapify(heap)
        self._push(self._entries, node)

    def pop(self) -> Node | None:
        """The leaf to evict, or None. Changes: it is not in the queue any more."""
        for heap in (self._entries, self._wanted):
            while heap:
                entry = heapq.heappop(heap)
                node = entry[3]
                if not _is_current(entry):
                    continue
                aged = self.worth.aged(node)
                if aged != node.worth:
                    node.worth = aged
                    self._push(heap, node)
                elif node.guests and heap is self._entries:
                    self._push(self._wanted, node)
                else:
                    return node
        return None

    def _push(self, heap: list[tuple[float, int, int, Node]], node: Node) -> None:
        self._serial += 1
        heapq.heappush(heap, (node.worth, node.stamp, self._serial, node))


def _is_current(entry: tuple[float, int, int, Node]) -> bool:
    worth, stamp, _, node = entry
    return worth == node.worth and stamp == node.stamp and node.is_evictable_leaf
