"""What the tree tells those who keep books about its nodes."""

from __future__ import annotations

from typing import Protocol

from mmserve.radix.node import Node

__all__ = ["NodeWatcher", "Unwatched"]


class NodeWatcher(Protocol):
    """Hears of every change to a node that has guests, when the change is complete."""

    def filled(self, node: Node) -> None:
        """A ghost has got slots."""
        ...

    def emptied(self, node: Node) -> None:
        """A node has lost its slots and is a ghost now."""
        ...

    def was_split(self, upper: Node, lower: Node) -> None:
        """`lower` was cut in two; it keeps what was known of its end."""
        ...

    def was_joined(self, upper: Node, lower: Node) -> None:
        """`upper` is gone; its tokens are the first of `lower`."""
        ...

    def deserted(self, node: Node) -> None:
        """The last guest at or below a node has left."""
        ...


class Unwatched:
    """Nobody listens."""

    def filled(self, node: Node) -> None:
        """Nothing to do."""

    def emptied(self, node: Node) -> None:
        """Nothing to do."""

    def was_split(self, upper: Node, lower: Node) -> None:
        """Nothing to do."""

    def was_joined(self, upper: Node, lower: Node) -> None:
        """Nothing to do."""

    def deserted(self, node: Node) -> None:
        """Nothing to do."""
