"""The tree as text a person can read.

radix tree: 3 nodes, 58 tokens, 12 evictable
default
`-- 46 tokens: text 10, picture #0 [0, 36)   hits 7, pins 8
    |-- 6 tokens: text 6   pins 1
    `-- 6 tokens: text 6
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from mmserve.radix.interner import media_parts
from mmserve.radix.node import Node
from mmserve.radix.tree import RadixTree

__all__ = ["draw"]

_MAX_LINES = 200


def draw(tree: RadixTree) -> str:
    """The tree, a line a node: tokens, what they stand for, hits, pins. Pure."""
    lines = [
        f"radix tree: {tree.num_nodes} nodes, {tree.num_tokens} tokens, "
        f"{tree.num_evictable} evictable"
    ]
    for namespace, root in sorted(tree.roots().items()):
        lines.append(namespace or "default")
        _draw_children(root, "", lines)
    if len(lines) > _MAX_LINES:
        num_hidden = len(lines) - _MAX_LINES
        lines = [*lines[:_MAX_LINES], f"... {num_hidden} more lines"]
    return "\n".join(lines)


def _draw_children(root: Node, indent: str, lines: list[str]) -> None:
    stack = [(child, indent, position == 0) for position, child in enumerate(_ordered(root))]
    while stack and len(lines) <= _MAX_LINES * 2:
        node, before, is_last = stack.pop()
        lines.append(f"{before}{'`-- ' if is_last else '|-- '}{_describe(node)}")
        below = before + ("    " if is_last else "|   ")
        stack.extend((child, below, n == 0) for n, child in enumerate(_ordered(node)))


def _ordered(node: Node) -> list[Node]:
    """Children as a stack wants them: the last to be drawn first."""
    return list(node.children.values())[::-1]


def _describe(node: Node) -> str:
    counts = (("hits", node.hits), ("pins", node.users))
    notes = [f"{name} {count}" for name, count in counts if count]
    tail = "   " + ", ".join(notes) if notes else ""
    return f"{node.num_tokens} tokens: {', '.join(_segments(node.keys))}{tail}"


def _segments(keys: NDArray[np.int64]) -> list[str]:
    """Runs of text and of pictures, in order."""
    items, offsets = media_parts(keys)
    is_cut = (np.diff(items) != 0) | ((np.diff(offsets) != 1) & (items[1:] >= 0))
    bounds = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(keys)]
    words = []
    for start, end in itertools.pairwise(bounds):
        if items[start] < 0:
            words.append(f"text {end - start}")
        else:
            words.append(f"picture #{items[start]} [{offsets[start]}, {offsets[end - 1] + 1})")
    return words
