"""Which evicted runs are still remembered, so that a miss can be told from a first sight."""

from __future__ import annotations

from collections import OrderedDict

from mmserve.radix.node import Node

__all__ = ["History"]


class History:
    """Ghosts that once held KV, in the order of their eviction, of at most `limit_tokens`."""

    def __init__(self, limit_tokens: int) -> None:
        self.limit_tokens = limit_tokens
        self.num_tokens = 0
        self._nodes: OrderedDict[Node, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._nodes)

    def remember(self, node: Node) -> None:
        """Take a ghost in, as the latest. Changes: the node, the history."""
        if not node.is_remembered:
            node.is_remembered = True
            self.num_tokens += node.num_tokens
        self._nodes[node] = None
        self._nodes.move_to_end(node)

    def forget(self, node: Node) -> None:
        """Let a remembered ghost go. Changes: the node, the history."""
        node.is_remembered = False
        self.num_tokens -= node.num_tokens
        del self._nodes[node]

    def note_split(self, upper: Node, lower: Node) -> None:
        """A remembered ghost was cut in two. Changes: both halves are remembered."""
        self._nodes[upper] = None
        self._nodes.move_to_end(upper, last=False)
        self._nodes.move_to_end(lower, last=False)

    def note_joined(self, upper: Node, lower: Node) -> None:
        """A remembered ghost was joined with the one below. Changes: only that one is left."""
        del self._nodes[upper]
        self._nodes.move_to_end(lower)

    def take_oldest(self) -> Node | None:
        """Forget the oldest if there are too many tokens; it, or None. Changes: as `forget`."""
        if self.num_tokens <= self.limit_tokens or not self._nodes:
            return None
        node = next(iter(self._nodes))
        self.forget(node)
        return node
