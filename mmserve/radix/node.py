"""One node of the radix tree: a run of tokens that always occurs as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Node"]


class Node:
    """A run of keys and the KV slots that hold them.

    `users` counts pins on this node and on all below it; `stamp` is the tick of the last use;
    `hits` counts matches that took tokens of it. A root has no keys, but a `namespace`.
    Written by `RadixTree` only.
    """

    __slots__ = (
        "children",
        "hits",
        "keys",
        "namespace",
        "parent",
        "slots",
        "stamp",
        "users",
    )

    def __init__(
        self,
        parent: Node | None,
        keys: NDArray[np.int64],
        slots: NDArray[np.int64],
        *,
        stamp: int = 0,
        namespace: str | None = None,
    ) -> None:
        self.parent = parent
        self.keys = keys
        self.slots = slots
        self.stamp = stamp
        self.namespace = namespace
        self.children: dict[int, Node] = {}
        self.users = 0
        self.hits = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of this run, without those above."""
        return len(self.keys)

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether nothing uses it and nothing lies below."""
        return self.parent is not None and self.users == 0 and not self.children

    @property
    def is_root(self) -> bool:
        """Whether nothing lies above."""
        return self.namespace is not None
