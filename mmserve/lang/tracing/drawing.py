"""Graphs of programs for people: text of 80 columns, or an SVG file with a column per state."""

from __future__ import annotations

from collections.abc import Sequence

from mmserve.core.svg import PALE, Canvas, Paint, cut, fitted, printable
from mmserve.lang.tracing.node import GraphNode, Kind

__all__ = ["draw_svg", "draw_text"]

_WIDTH = 80
_MARKS: dict[Kind, str] = {
    "text": "text  ",
    "raw": "raw   ",
    "hole": "hole  ",
    "image": "image ",
    "video": "video ",
    "gen": "gen   ",
    "select": "select",
    "turn": "turn  ",
    "scope": "scope ",
    "fork": "fork  ",
    "join": "join  ",
}
_TEXT, _OPEN = Paint("#f2f4f7", "#98a2b3"), Paint("#ffffff", "#98a2b3", is_dashed=True)
_CALL, _MEDIA = Paint("#dbe9ff", "#3b6fb6"), Paint("#ffe8cc", "#b76e00")
_FLOW = Paint("#e6f4ea", "#3d8b53")
_PAINTS: dict[Kind, Paint] = {
    "hole": _OPEN,
    "image": _MEDIA,
    "video": _MEDIA,
    "gen": _CALL,
    "select": _CALL,
    "fork": _FLOW,
    "join": _FLOW,
}
_LEGEND = (
    ("text, turns", _TEXT),
    ("argument", _OPEN),
    ("media", _MEDIA),
    ("call", _CALL),
    ("fork, join", _FLOW),
)
_BOX_HEIGHT, _ROW, _LEFT, _TOP = 22.0, 34.0, 20.0, 70.0
_MOST_COLUMNS = 8


def draw_text(name: str, nodes: Sequence[GraphNode]) -> str:
    """A line for each node, states of forks indented. Pure."""
    lines = [f"{name}: {len(nodes)} nodes"]
    for node in nodes:
        indent = "  " * min(node.state, 10)
        before = ",".join(f"%{prev.number}" for prev in node.prevs)
        head = f"%{node.number:<3} {indent}{_MARKS[node.kind]} "
        tail = f" <- {before}" if before else ""
        label = repr(node.label) if node.kind in ("text", "raw") else node.label
        lines.append((head + cut(label, _WIDTH - len(head) - len(tail))).rstrip() + tail)
    return "\n".join(lines) + "\n"


def draw_svg(name: str, nodes: Sequence[GraphNode]) -> str:
    """Nodes as boxes from top to bottom, a column for each state. Pure."""
    canvas = Canvas(f"program {name}")
    canvas.words(_LEFT, 24, f"{printable(name)}: what it appends", size=16, is_bold=True)
    canvas.legend(_LEFT, 48, _LEGEND)
    num_columns = min(1 + max((node.state for node in nodes), default=0), _MOST_COLUMNS)
    width = (1200.0 - 2 * _LEFT) / num_columns - 16
    rows = _rows(nodes)
    places = {
        node.number: (_LEFT + (node.state % num_columns) * (width + 16), _TOP + row * _ROW)
        for node, row in zip(nodes, rows, strict=True)
    }
    for node in nodes:
        x, y = places[node.number]
        for prev in node.prevs:
            before_x, before_y = places[prev.number]
            middle, start = width / 2, before_y + _BOX_HEIGHT
            turn = y - (_ROW - _BOX_HEIGHT) / 2
            path = ((before_x + middle, start), (before_x + middle, turn))
            canvas.line((*path, (x + middle, turn), (x + middle, y)), PALE)
    for node in nodes:
        x, y = places[node.number]
        canvas.box(x, y, width, _BOX_HEIGHT, _PAINTS.get(node.kind, _TEXT), str(node))
        label = f"{node.kind} {node.label}" if node.kind != "text" else node.label
        canvas.words(x + 6, y + _BOX_HEIGHT / 2, fitted(label, width - 12))
    return canvas.finish(_TOP + (max(rows, default=0) + 1) * _ROW + 10)


def _rows(nodes: Sequence[GraphNode]) -> list[int]:
    """A row for each node, below all it depends on; one node a row and state. Pure."""
    rows: dict[int, int] = {}
    for node in nodes:
        rows[node.number] = 1 + max((rows[prev.number] for prev in node.prevs), default=-1)
    return [rows[node.number] for node in nodes]
