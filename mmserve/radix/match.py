"""What searching and inserting give back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.radix.node import Node

__all__ = ["Insertion", "Match"]


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """How far a prompt's KV already lies in the tree.

    Args:
        node: deepest node reached.
        num_used: tokens of that node's run that match; all of them, or `pin` splits it.
        num_tokens: position reached, counted from the root.
        slots: int64 [k], KV slots of the last k of these tokens: those the search went over.
    """

    node: Node
    num_used: int
    num_tokens: int
    slots: NDArray[np.int64]

    @property
    def is_whole(self) -> bool:
        """Whether the match ends where its node ends."""
        return self.num_used == self.node.num_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Insertion:
    """What became of tokens put in: where they end, and how many the tree had already.

    `slots` int64 [num_existing] are the tree's own for those; the caller's are duplicates.
    """

    end: Match
    num_existing: int
    slots: NDArray[np.int64]
