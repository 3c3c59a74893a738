"""One node of the radix tree: a run of tokens that always occurs as a whole."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Label", "Node"]

Label = int | bytes
"""By which a parent finds a child: its first key, or the bytes of its first page of keys."""


class Node:
    """A run of keys, and the KV slots that hold them, or None: then the node is a *ghost*.

    A ghost stands for tokens without KV: a waiting sequence will want them (it has guests), or
    they were here and were evicted (it is remembered), or both. All that lies below a ghost is
    a ghost. Written by `RadixTree` only.

    Args:
        depth: tokens from the root to the end of this run.
        namespace: set on a root, which has no keys and is never a ghost.
        stamp: tick of the last use; worth: what the eviction policy thinks of it.
        users: pins on this node and on all below it.
        hits: matches that took tokens of it.
        guests: sequences hung here or below, by client; num_own: those hung exactly here.
        num_resident: children that are not ghosts.
        is_again: its tokens had KV and were evicted; if they have KV now, it is not the first.
        mark: what a sequence that ended exactly here left, see `RadixTree.mark`.
    """

    __slots__ = (
        "children",
        "depth",
        "guests",
        "hits",
        "is_again",
        "is_remembered",
        "keys",
        "mark",
        "namespace",
        "num_own",
        "num_resident",
        "parent",
        "slots",
        "stamp",
        "users",
        "worth",
    )

    def __init__(
        self,
        parent: Node | None,
        keys: NDArray[np.int64],
        slots: NDArray[np.int64] | None,
        *,
        depth: int = 0,
        stamp: int = 0,
        namespace: str | None = None,
    ) -> None:
        self.parent = parent
        self.keys = keys
        self.slots = slots
        self.depth = depth
        self.stamp = stamp
        self.worth = 0.0
        self.namespace = namespace
        self.children: dict[Label, Node] = {}
        self.num_resident = 0
        self.users = 0
        self.hits = 0
        self.guests: dict[str, int] = {}
        self.num_own = 0
        self.is_remembered = False
        self.is_again = False
        self.mark: tuple[str, int] | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens of this run, without those above."""
        return len(self.keys)

    @property
    def is_ghost(self) -> bool:
        """Whether its tokens have no KV."""
        return self.slots is None

    @property
    def is_evictable_leaf(self) -> bool:
        """Whether it holds slots that nothing uses, and nothing below holds any."""
        return (
            self.users == 0
            and self.num_resident == 0
            and self.slots is not None
            and self.parent is not None
        )

    @property
    def is_root(self) -> bool:
        """Whether nothing lies above."""
        return self.namespace is not None
