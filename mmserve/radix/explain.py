"""What is known of a prompt that is not all cached."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from mmserve.radix.branch import descend
from mmserve.radix.interner import media_parts
from mmserve.radix.node import Node

__all__ = ["MediaCount", "explain"]

_NUM_OTHERS = 8
"""Other namespaces in which a miss is looked for."""


def explain(
    roots: dict[str, Node], namespace: str, keys: NDArray[np.int64], page_tokens: int
) -> tuple[int, int, int]:
    """See `RadixTree.explain`. Pure."""
    limit = len(keys)
    resident = known = 0
    if namespace in roots:
        parts = descend(roots[namespace], keys, 0, limit, page_tokens, ghosts=True)
        for node, num_used in parts:
            if node.is_ghost and not node.is_remembered:
                break
            known += num_used
            resident += 0 if node.is_ghost else num_used
    elsewhere = known
    others = (name for name in reversed(roots) if name != namespace)
    for name in islice(others, _NUM_OTHERS):
        if elsewhere + page_tokens > limit:
            break
        parts = descend(roots[name], keys, 0, limit, page_tokens, ghosts=False)
        elsewhere = max(elsewhere, sum(num_used for _, num_used in parts))
    return resident, known, elsewhere


class MediaCount:
    """Tokens with KV of every media item. Mutable."""

    def __init__(self) -> None:
        self._num_tokens: Counter[int] = Counter()

    def num_tokens(self, item: int) -> int:
        """Tokens of an item. Pure."""
        return self._num_tokens[item]

    def add(self, keys: NDArray[np.int64]) -> None:
        """Keys have got KV. Changes: the counts of their items."""
        self._num_tokens.update(_items(keys))

    def remove(self, keys: NDArray[np.int64]) -> None:
        """Keys have lost it. Changes: the counts of their items."""
        for item, count in _items(keys).items():
            self._num_tokens[item] -= count
            if not self._num_tokens[item]:
                del self._num_tokens[item]


def _items(keys: NDArray[np.int64]) -> dict[int, int]:
    media = keys[keys < 0]
    if not len(media):
        return {}
    items, counts = np.unique(media_parts(media)[0], return_counts=True)
    return dict(zip(items.tolist(), counts.tolist(), strict=True))
