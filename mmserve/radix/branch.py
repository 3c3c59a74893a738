"""Shape of the tree: finding the way down, cutting a run in two, joining two runs.

    split   parent -- [ABCDEF]            ->  parent -- [AB] -- [CDEF]
    join    parent -- [AB] -- [CDEF]      ->  parent -- [ABCDEF]

The lower half keeps the identity of the node, so that whatever ends at its end still does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken
from mmserve.radix.node import Label, Node

__all__ = ["all_below", "descend", "join", "label_of", "num_equal", "num_unpinned", "split"]

Keys = NDArray[np.int64]


def label_of(keys: Keys, position: int, page_tokens: int) -> Label:
    """Label of the page that begins at `position`. Pure."""
    if page_tokens == 1:
        return int(keys[position])
    return keys[position : position + page_tokens].tobytes()


def num_equal(run: Keys, keys: Keys) -> int:
    """Length of the common prefix. Pure."""
    length = min(len(run), len(keys))
    differs = run[:length] != keys[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def descend(
    node: Node, keys: Keys, start: int, limit: int, page_tokens: int, *, ghosts: bool
) -> list[tuple[Node, int]]:
    """Nodes below `node` that hold keys [start, limit), with how much of each does.

    Only the last one may be used in part. Whole pages only. Without `ghosts` the way ends
    where KV does. Pure. Cost: a dictionary look-up and a vector comparison a node.
    """
    parts: list[tuple[Node, int]] = []
    position = start
    while position + page_tokens <= limit:
        child = node.children.get(label_of(keys, position, page_tokens))
        if child is None or (child.slots is None and not ghosts):
            break
        num_used = num_equal(child.keys, keys[position:limit])
        num_used -= num_used % page_tokens
        parts.append((child, num_used))
        position += num_used
        if num_used < child.num_tokens:
            break
        node = child
    return parts


def all_below(roots: Iterable[Node]) -> Iterator[Node]:
    """All nodes below these, parents first. Pure."""
    stack = list(roots)
    while stack:
        node = stack.pop()
        if not node.is_root:
            yield node
        stack.extend(node.children.values())


def num_unpinned(node: Node, num_used: int) -> int:
    """Unpinned tokens on the way to the first `num_used` of a node. Pure."""
    num_tokens = 0
    passed: Node | None = node
    while passed is not None and passed.users == 0:
        num_tokens += num_used
        passed = passed.parent
        num_used = passed.num_tokens if passed is not None else 0
    return num_tokens


def split(node: Node, num_upper: int, page_tokens: int) -> Node:
    """Cut a run in two; the new upper node. Changes: both, and the parent's children.

    Each half owns its arrays, so that neither keeps the memory of the other.
    """
    parent = node.parent
    if parent is None:
        raise LedgerBroken("a root was split")
    slots = node.slots
    upper = Node(
        parent,
        node.keys[:num_upper].copy(),
        None if slots is None else slots[:num_upper].copy(),
        depth=node.depth - node.num_tokens + num_upper,
        stamp=node.stamp,
    )
    upper.users, upper.hits, upper.worth = node.users, node.hits, node.worth
    upper.guests, upper.is_remembered = dict(node.guests), node.is_remembered
    upper.is_again = node.is_again
    upper.num_resident = 0 if slots is None else 1
    parent.children[label_of(upper.keys, 0, page_tokens)] = upper
    node.keys = node.keys[num_upper:].copy()
    node.slots = None if slots is None else slots[num_upper:].copy()
    node.parent = upper
    upper.children[label_of(node.keys, 0, page_tokens)] = node
    return upper


def join(node: Node, page_tokens: int) -> Node | None:
    """Join a node with the one above if nothing else begins or ends between them.

    The node above, which is no longer part of the tree, or None if they must stay apart.
    Changes: the node, its new parent's children. Cost: copies both runs.
    """
    upper = node.parent
    if upper is None or upper.parent is None or not _is_seam(upper, node):
        return None
    node.keys = np.concatenate((upper.keys, node.keys))
    if upper.slots is not None and node.slots is not None:
        node.slots = np.concatenate((upper.slots, node.slots))
    node.stamp, node.hits = max(upper.stamp, node.stamp), max(upper.hits, node.hits)
    node.worth = max(upper.worth, node.worth)
    node.is_again |= upper.is_again
    node.parent = upper.parent
    node.parent.children[label_of(node.keys, 0, page_tokens)] = node
    upper.parent = None
    upper.children = {}
    return upper


def _is_seam(upper: Node, lower: Node) -> bool:
    return (
        len(upper.children) == 1
        and upper.num_own == 0
        and upper.mark is None
        and upper.users == lower.users
        and upper.is_ghost == lower.is_ghost
        and upper.is_remembered == lower.is_remembered
    )
