"""The tree as plain values for programs that draw it themselves: what is where, and no text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from mmserve.radix.excerpt import (
    Branch,
    Piece,
    excerpt,
    name_of,
    num_waiting,
    pieces_of,
    state_of,
)
from mmserve.radix.tree import RadixTree

__all__ = ["outline"]

_MAX_NODES = 160
_MAX_PIECES = 40
"""Of one node, and `_MAX_ALL_PIECES` of all."""
_MAX_ALL_PIECES = 1200
Name = Callable[[int], tuple[str, str] | None]
_WORDS = {"image": "picture", "video": "frame"}


def outline(tree: RadixTree, name: Name) -> dict[str, Any]:
    """The tree as JSON may hold it, about 160 nodes of the branches that matter. Pure.

    Args:
        tree: to look at.
        name: digest and kind of a media item, as `Interner.name` tells them.

    A node comes before those below it, and names its parent by its place in the list. Its
    pieces say what its tokens are: so many of text, or tokens [start, end) of a picture or
    frame, with its digest while that is remembered. Text itself, salts and ids of tokens are
    not told. `age` counts uses of other branches since the node's own last one.

    Cost: some 20 us a node told, and 0.3 us for each of its children.
    """
    roots = excerpt(tree, _MAX_NODES)
    return {
        "num_nodes": tree.num_nodes,
        "num_tokens": tree.num_tokens,
        "num_pinned_tokens": tree.num_tokens - tree.num_evictable,
        "num_evicted_tokens": tree.num_evicted_tokens,
        "num_hidden_namespaces": max(0, len(tree.roots()) - len(roots)),
        "nodes": _nodes(roots, name),
    }


def _nodes(roots: Mapping[str, Branch], name: Name) -> list[dict[str, Any]]:
    """All nodes drawn, depth first."""
    stack: list[tuple[Branch, int | None]] = []
    stack.extend((root, None) for root in reversed(list(roots.values())))
    spaces = {id(root): name_of(namespace) for namespace, root in roots.items()}
    newest = max((branch.node.stamp for branch in _all(roots.values())), default=0)
    nodes: list[dict[str, Any]] = []
    num_left = _MAX_ALL_PIECES
    while stack:
        branch, parent = stack.pop()
        told = _node(branch, min(num_left, _MAX_PIECES), name)
        told |= {"parent": parent, "age": newest - branch.node.stamp}
        if parent is None:
            told |= {"namespace": spaces[id(branch)], "state": "root"}
        num_left -= len(told["pieces"])
        stack.extend((child, len(nodes)) for child in reversed(branch.children))
        nodes.append(told)
    return nodes


def _all(branches: Iterable[Branch]) -> Iterable[Branch]:
    stack = list(branches)
    while stack:
        branch = stack.pop()
        yield branch
        stack.extend(branch.children)


def _node(branch: Branch, most_pieces: int, name: Name) -> dict[str, Any]:
    node = branch.node
    pieces = [] if node.is_root else pieces_of(node.keys)
    return {
        "state": state_of(node),
        "num_tokens": node.num_tokens,
        "hits": node.hits,
        "pins": node.users,
        "waiting": num_waiting(node),
        "num_hidden": branch.num_hidden,
        "pieces": [_piece(piece, name) for piece in pieces[:most_pieces]],
        "num_hidden_pieces": max(0, len(pieces) - most_pieces),
    }


def _piece(piece: Piece, name: Name) -> dict[str, Any]:
    if piece.item < 0:
        return {"kind": "text", "num_tokens": piece.end - piece.start}
    identity, kind = name(piece.item) or (None, "image")
    return {
        "kind": _WORDS[kind],
        "num_tokens": piece.end - piece.start,
        "start": piece.start,
        "end": piece.end,
        "item": piece.item,
        "identity": identity,
    }
