"""How far sequences of tokens begin alike."""

from __future__ import annotations

__all__ = ["common_length"]


def common_length(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens that both have in common at their beginning. Pure. Cost: O(tokens)."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
