"""Drawings of graphs: wide forks, forks of forks and long programs stay legible."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from itertools import combinations, pairwise

import pytest

import mmserve as sgl
from mmserve.lang import ProgramState
from mmserve.lang.tracing import Graph

_SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


@sgl.function
def wide(s, size):
    """A fork of this size, gathered."""
    s += "Topic:\n"
    forks = s.fork(size)
    forks += "On it: " + sgl.gen("tip")
    forks.join()
    s += sgl.gen("end")


@sgl.function
def nested(s, size, depth):
    """Forks of forks."""

    def go_on(state: ProgramState, depth: int) -> None:
        state += "Next: " + sgl.gen("step")
        if depth:
            forks = state.fork(size)
            for fork in forks:
                go_on(fork, depth - 1)
            forks.join()

    go_on(s, depth)


@sgl.function
def chain(s, question):
    """Many turns in a row."""
    for number in range(30):
        s += sgl.user(question) + sgl.assistant(sgl.gen(f"answer {number}"))


GRAPHS = (
    wide.trace(size=3),
    wide.trace(size=16),
    wide.trace(size=60),
    nested.trace(size=3, depth=2),
    nested.trace(size=2, depth=6),
    nested.trace(size=1, depth=12),
    chain.trace(),
)


def boxes_of(root: ElementTree.Element) -> list[Box]:
    """Left, top, right and bottom of each node."""
    found = []
    for box in root.iter(f"{_SVG}rect"):
        x, y, width, height = (
            float(box.get(side, "0")) for side in ("x", "y", "width", "height")
        )
        if box.get("height") == "22.0":
            found.append((x, y, x + width, y + height))
    return found


def meet(one: Box, other: Box) -> bool:
    """Whether two areas have more than an edge in common."""
    slack = 0.2  # numbers in the file are rounded
    return (
        one[0] < other[2] - slack
        and other[0] < one[2] - slack
        and one[1] < other[3] - slack
        and other[1] < one[3] - slack
    )


@pytest.mark.parametrize("graph", GRAPHS)
def test_boxes_and_lines_keep_apart(graph: Graph):
    """No box lies on another or outside the drawing, and no line leads through one."""
    root = ElementTree.fromstring(graph.draw("svg"))
    boxes = boxes_of(root)
    assert len(boxes) == len(graph.nodes)
    assert max(box[2] for box in boxes) <= float(root.get("width", "0"))
    assert max(box[3] for box in boxes) <= float(root.get("height", "0"))
    assert not any(meet(one, other) for one, other in combinations(boxes, 2))
    for line in root.iter(f"{_SVG}polyline"):
        points = [
            tuple(map(float, point.split(","))) for point in line.get("points", "").split()
        ]
        for (x, y), (x2, y2) in pairwise(points):
            part = min(x, x2) - 0.3, min(y, y2), max(x, x2) + 0.3, max(y, y2)
            assert not any(meet(part, box) for box in boxes)


@pytest.mark.parametrize("graph", GRAPHS)
def test_lines_of_text_fit_a_terminal(graph: Graph):
    """Each node has a line of at most 80 letters, whatever it depends on."""
    lines = graph.draw().splitlines()
    assert len(lines) == len(graph.nodes) + 1
    assert max(map(len, lines)) <= 80


def test_a_long_program_goes_on_at_the_side():
    """A chain is drawn in several columns, not in one that nobody scrolls through."""
    tops = [box[1] for box in boxes_of(ElementTree.fromstring(chain.trace().draw("svg")))]
    assert len(set(tops)) < len(tops) / 2
