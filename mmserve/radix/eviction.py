"""Which leaf goes first when slots are needed: the one not used for the longest time."""

from __future__ import annotations

import heapq

from mmserve.radix.node import Node

__all__ = ["LeafQueue"]


class LeafQueue:
    """Unpinned leaves by the tick of their last use.

    Entries are not taken out when a leaf is pinned, used again or gone; they are passed over
    when popped, and swept when they are many.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[int, int, Node]] = []
        self._serial = 0

    def offer(self, node: Node, num_nodes: int) -> None:
        """A leaf may be evicted from now on; `num_nodes` is the size of the tree.

        Changes: the queue. Cost: O(log n), and a sweep now and then.
        """
        if len(self._entries) > 64 + 4 * num_nodes:
            self._entries = [entry for entry in self._entries if _is_valid(entry)]
            heapq.heapify(self._entries)
        self._serial += 1
        heapq.heappush(self._entries, (node.stamp, self._serial, node))

    def pop(self) -> Node | None:
        """The leaf to evict, or None. Changes: it is not in the queue any more."""
        while self._entries:
            entry = heapq.heappop(self._entries)
            if _is_valid(entry):
                return entry[2]
        return None


def _is_valid(entry: tuple[int, int, Node]) -> bool:
    return entry[0] == entry[2].stamp and entry[2].is_evictable_leaf
