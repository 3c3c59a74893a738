"""The tree as an SVG picture: prompts run from left to right, what they share is one box.

+---------+----------------+--------------+
| default | picture #0     | question 1   |     width   tokens of the run
|         |                +----+---------+     height  branches below
|         |                | q2 |
+---------+----------------+----+
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.core.svg import INK, PALE, WIDTH, Canvas, Paint, fitted
from mmserve.radix.drawing import headline
from mmserve.radix.excerpt import (
    Branch,
    excerpt,
    meaning,
    name_of,
    num_waiting,
    state_of,
    sums_of,
)
from mmserve.radix.tree import RadixTree

__all__ = ["draw_icicle"]

_MAX_NODES = 80
_MARGIN = 24.0
_TOP = 112.0
_LANE = 24.0
_GAP = 2.0
_ROOT = 128.0
_LEAST = 30.0
"""Width of the narrowest box: room for two digits."""
_TAIL = 240.0
"""Room for words to the right of the longest prompt."""
_PAINTS = {
    "pinned": Paint("#f5c26b", "#8a5a00"),
    "cached": Paint("#a9d3ef", "#2b6a94"),
    "wished": Paint("#ffffff", "#a3397d", is_dashed=True),
    "evicted": Paint("#eceff1", "#7b858f", is_dashed=True),
}
_MEANINGS = {
    "pinned": "in use now",
    "cached": "kept, can be evicted",
    "wished": "a waiting prompt needs it",
    "evicted": "was here, remembered",
}
_PART = re.compile(r" \[\d+, \d+\)")
_ROOT_PAINT = Paint("#f6f8fa", "#59636e")


@dataclass(frozen=True, slots=True)
class _Scale:
    """Pixels of a run of tokens."""

    pixels_a_token: float

    def width(self, num_tokens: int) -> float:
        return max(_LEAST, num_tokens * self.pixels_a_token)


def draw_icicle(tree: RadixTree) -> str:
    """The tree as an SVG file of about 80 nodes at most, the rest counted. Pure.

    Cost: O(nodes), about 0.3 us each, and some 20 us a node drawn.
    """
    canvas = Canvas("radix tree")
    roots = excerpt(tree, _MAX_NODES)
    head, *notes = headline(tree, sums_of(tree))
    canvas.words(_MARGIN, 28, head, size=16, is_bold=True)
    notes = [*notes, "the width of a box is its tokens, from 30 pixels up"]
    canvas.words(_MARGIN, 52, "; ".join(notes), colour=PALE)
    canvas.legend(
        _MARGIN, 78, [(f"{name}: {_MEANINGS[name]}", paint) for name, paint in _PAINTS.items()]
    )
    scale = _fit(roots.values())
    y = _TOP
    for namespace, branch in roots.items():
        height = _lanes(branch) * _LANE - _GAP
        name = name_of(namespace)
        canvas.box(_MARGIN, y, _ROOT, height, _ROOT_PAINT, f"namespace {name}")
        canvas.words(_MARGIN + 6, y + 11, fitted(name, _ROOT - 8, 11), size=11, is_bold=True)
        _draw_below(canvas, branch, y, scale)
        y += height + 14
    num_hidden = len(tree.roots()) - len(roots)
    if num_hidden > 0:
        canvas.words(_MARGIN, y + 8, f"... {num_hidden:,} more namespaces", colour=PALE)
        y += 24
    return canvas.finish(y + 10)


def _draw_below(canvas: Canvas, root: Branch, top: float, scale: _Scale) -> None:
    stack = [(root, _MARGIN + _ROOT + _GAP, top)]
    while stack:
        parent, x, y = stack.pop()
        for branch in parent.children:
            width = scale.width(branch.node.num_tokens)
            height = _lanes(branch) * _LANE - _GAP
            _draw_node(canvas, branch, (x, y, width, height))
            stack.append((branch, x + width + _GAP, y))
            y += height + _GAP
        if parent.num_hidden:
            canvas.words(
                x + 4, y + (_LANE - _GAP) / 2, f"... {parent.num_hidden:,} more", colour=PALE
            )


def _draw_node(
    canvas: Canvas, branch: Branch, place: tuple[float, float, float, float]
) -> None:
    node, (x, y, width, height) = branch.node, place
    state, waiting, words = state_of(node), num_waiting(node), meaning(node.keys)
    counts = ((node.hits, "hit"), (node.users, "pin"))
    some = [f"{count:,} {name}{'s' * (count > 1)}" for count, name in counts if count]
    notes = ", ".join([*some, f"{waiting:,} waiting"] if waiting else some)
    title = f"{node.num_tokens:,} tokens {state}: {words}" + (f"; {notes}" if notes else "")
    canvas.box(x, y, width, height, _PAINTS[state], title)
    first = min(height, _LANE - _GAP) / 2
    is_leaf = not branch.children and not branch.num_hidden
    label = f"{node.num_tokens:,}: {words}"
    if is_leaf and len(fitted(label, width - 8)) < len(label):
        canvas.words(x + 5, y + first, fitted(f"{node.num_tokens:,}", width - 6))
        room = WIDTH - _MARGIN - x - width - 6
        tail = words + (f"; {notes}" if notes else "")
        canvas.words(x + width + 6, y + first, fitted(tail, room), colour=PALE)
        return
    if len(fitted(label, width - 8)) < len(label):
        label = _PART.sub("", label).replace("picture", "pic")
    shown = fitted(label, width - 8) or fitted(f"{node.num_tokens:,}", width - 6)
    if len(shown) < len(f"{node.num_tokens:,}") + 7:
        shown = fitted(f"{node.num_tokens:,}", width - 6)
    canvas.words(x + 5, y + first, shown, colour=INK)
    if height > _LANE:
        canvas.words(x + 5, y + first + 18, fitted(notes, width - 8), size=11, colour=PALE)


def _lanes(branch: Branch) -> int:
    """Leaves below, as drawn; a node that hides its children has one lane for them. Pure."""
    if not branch.children:
        return 1
    return sum(map(_lanes, branch.children)) + (branch.num_hidden > 0)


def _fit(roots: Iterable[Branch]) -> _Scale:
    """The largest scale at which the longest prompt fits, with short runs widened. Pure."""
    paths = list(_paths(roots))
    room = WIDTH - 2 * _MARGIN - _ROOT - _TAIL
    low, high = 0.0, 8.0
    for _ in range(30):
        middle = _Scale((low + high) / 2)
        is_fitting = all(
            sum(middle.width(tokens) + _GAP for tokens in path) <= room for path in paths
        )
        low, high = (
            (middle.pixels_a_token, high) if is_fitting else (low, middle.pixels_a_token)
        )
    return _Scale(low)


def _paths(roots: Iterable[Branch]) -> Iterable[tuple[int, ...]]:
    """Tokens of the nodes on the way to each leaf."""
    stack: list[tuple[Branch, tuple[int, ...]]] = [(root, ()) for root in roots]
    while stack:
        branch, path = stack.pop()
        if not branch.children:
            yield path
        stack.extend((child, (*path, child.node.num_tokens)) for child in branch.children)
