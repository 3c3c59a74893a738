"""What a drawing shows of a tree that may be too large to be drawn: the branches that matter.

A node is opened, most used first and what was evicted last, until the drawing is full; of a
node with many children the most used are shown and the others counted.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mmserve.radix.interner import media_parts
from mmserve.radix.node import Node
from mmserve.radix.tree import RadixTree

__all__ = [
    "Branch",
    "Piece",
    "Sums",
    "excerpt",
    "meaning",
    "name_of",
    "num_waiting",
    "pieces_of",
    "state_of",
    "sums_of",
]

_MAX_CHILDREN = 12
_LEAST_FOLDED = 2
_MAX_WORDS = 12


class Piece(NamedTuple):
    """Tokens [start, end) of a picture, or as many of text, whose `item` is -1."""

    item: int
    start: int
    end: int


@dataclass(slots=True, eq=False)
class Branch:
    """A node that is drawn, those below it that are drawn, and how many children are not."""

    node: Node
    children: list[Branch] = field(default_factory=list)
    num_hidden: int = 0


@dataclass(frozen=True, slots=True)
class Sums:
    """Over all nodes: matches, waiting sequences, and what is known of tokens without KV."""

    hits: int
    waiting: int
    wished_tokens: int
    evicted_tokens: int


def excerpt(tree: RadixTree, num_lines: int) -> dict[str, Branch]:
    """Roots by namespace with branches of about `num_lines` nodes, in the tree's order.

    Pure. Cost: O(children) of the nodes drawn.
    """
    roots = {name: Branch(root) for name, root in sorted(tree.roots().items())[:num_lines]}
    num_left = num_lines - len(roots)
    order = itertools.count()
    queue = [(_weight(branch.node), next(order), branch) for branch in roots.values()]
    heapq.heapify(queue)
    while queue:
        branch = heapq.heappop(queue)[2]
        _open(branch, min(_MAX_CHILDREN, num_left))
        num_left -= len(branch.children)
        for child in branch.children:
            heapq.heappush(queue, (_weight(child.node), next(order), child))
    return roots


def _open(branch: Branch, num_shown: int) -> None:
    nodes = list(branch.node.children.values())
    if len(nodes) > num_shown:
        best = {id(node) for node in heapq.nsmallest(num_shown, nodes, key=_weight)}
        branch.num_hidden = len(nodes) - num_shown
        nodes = [node for node in nodes if id(node) in best]
    branch.children = [Branch(node) for node in nodes]


def _weight(node: Node) -> tuple[int, bool, int, int]:
    """Small for what is used now, then for what has KV, then for what was used much."""
    return (-node.users - num_waiting(node), node.slots is None, -node.hits, -node.num_tokens)


def name_of(namespace: str) -> str:
    """A word for a namespace: "default", or a digest, since salts are secrets. Pure."""
    if not namespace:
        return "default"
    name = namespace.encode("utf-8", "backslashreplace")
    return f"salt:{hashlib.sha256(b'mmserve salt ' + name).hexdigest()[:12]}"


def num_waiting(node: Node) -> int:
    """Waiting sequences whose prompts pass through this node. Pure."""
    return sum(node.guests.values()) if node.guests else 0


def state_of(node: Node) -> str:
    """One word: pinned, cached, wished (a waiting prompt will want it) or evicted. Pure."""
    if node.slots is None:
        return "wished" if num_waiting(node) else "evicted"
    return "pinned" if node.users else "cached"


def sums_of(tree: RadixTree) -> Sums:
    """Sums over the whole tree. Pure. Cost: O(nodes), about 0.3 us each."""
    roots = tree.roots().values()
    hits = wished = evicted = 0
    stack = list(roots)
    while stack:
        node = stack.pop()
        hits += node.hits
        if node.slots is None:
            if node.guests:
                wished += node.num_tokens
            else:
                evicted += node.num_tokens
        stack.extend(node.children.values())
    return Sums(hits, sum(map(num_waiting, roots)), wished, evicted)


def meaning(keys: NDArray[np.int64]) -> str:
    """What the tokens of a run stand for, in its order; pictures alike are folded. Pure."""
    pieces = pieces_of(keys)
    words: list[str] = []
    position = 0
    while position < len(pieces) and len(words) < _MAX_WORDS:
        piece = pieces[position]
        part = f"[{piece.start}, {piece.end})"
        num_alike, stride = _num_alike(pieces, position)
        if piece.item < 0:
            words.append(f"text {piece.end}")
            num_alike = 1
        elif num_alike < _LEAST_FOLDED:
            words.append(f"picture #{piece.item} {part}")
            num_alike = 1
        else:
            gap = f" + text {pieces[position + 1].end}" if stride > 1 else ""
            words.append(
                f"pictures #{piece.item}..#{piece.item + num_alike - 1} {part}{gap} each"
            )
        position += (num_alike - 1) * stride + 1
    return ", ".join(words) + (", .." if position < len(pieces) else "")


def _num_alike(pieces: list[Piece], position: int) -> tuple[int, int]:
    """Pictures from here on with numbers in a row and the same part and gap; pieces of each."""
    first, *after = pieces[position : position + 2]
    stride = 2 if after and after[0].item < 0 else 1
    count = 1
    for place in range(position + stride, len(pieces), stride):
        like = Piece(first.item + count, first.start, first.end)
        if pieces[place] != like or (stride > 1 and pieces[place - 1] != after[0]):
            break
        count += 1
    return count, stride


def pieces_of(keys: NDArray[np.int64]) -> list[Piece]:
    """A run of keys as text and parts of media, in its order. Pure."""
    items, offsets = media_parts(keys)
    is_cut = (np.diff(items) != 0) | ((np.diff(offsets) != 1) & (items[1:] >= 0))
    bounds = [0, *(np.flatnonzero(is_cut) + 1).tolist(), len(keys)]
    pieces = []
    for start, end in itertools.pairwise(bounds):
        first = max(0, int(offsets[start]))
        pieces.append(Piece(int(items[start]), first, first + end - start))
    return pieces
