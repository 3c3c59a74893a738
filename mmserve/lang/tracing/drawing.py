"""Graphs of programs for people: text of 80 columns, or an SVG file with a column per state.

state 0   state 1   state 2           a column is free again behind the last node of its
[fork ]                               state; what finds none free stands further down
   |--------|---------|
   |     [gen b]   [gen b]            a long program goes on in the next columns
   |--------|---------|
[join ]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mmserve.core.svg import PALE, WIDTH, Canvas, Paint, cut, fitted, printable
from mmserve.lang.tracing.node import GraphNode, Kind

__all__ = ["draw_svg", "draw_text"]

_WIDTH = 80
_MOST_BEFORE = 24
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
    ("unknown value", _OPEN),
    ("media", _MEDIA),
    ("call", _CALL),
    ("fork, join", _FLOW),
)
_BOX_HEIGHT, _ROW, _LEFT, _TOP, _GUTTER = 22.0, 34.0, 20.0, 70.0, 16.0
_GAP = (_ROW - _BOX_HEIGHT) / 3
_WIDEST = 360.0
_MOST_COLUMNS = 8
_MANY_ROWS = 36


def draw_text(name: str, nodes: Sequence[GraphNode]) -> str:
    """A line for each node, states of forks indented. Pure."""
    lines = [f"{name}: {len(nodes)} nodes"]
    for node in nodes:
        indent = "  " * min(node.state, 10)
        head = f"%{node.number:<3} {indent}{_MARKS[node.kind]} "
        tail = _before(node)
        label = cut(_label(node), _WIDTH - len(head) - len(tail))
        lines.append((head + label).rstrip() + tail)
    return "\n".join(lines) + "\n"


def _before(node: GraphNode) -> str:
    """What a node depends on, the end of a long list counted only. Pure."""
    names = [f"%{prev.number}" for prev in node.prevs]
    num_shown = len(names)
    while num_shown > 1 and len(",".join(names[:num_shown])) > _MOST_BEFORE:
        num_shown -= 1
    if not names:
        return ""
    more = f" and {len(names) - num_shown} more" if num_shown < len(names) else ""
    return f" <- {','.join(names[:num_shown])}{more}"


def _label(node: GraphNode) -> str:
    return repr(node.label) if node.kind in ("text", "raw") else node.label


def draw_svg(name: str, nodes: Sequence[GraphNode]) -> str:
    """Nodes as boxes from top to bottom, a column for each state. Pure."""
    canvas = Canvas(f"program {name}")
    canvas.words(_LEFT, 24, f"{printable(name)}: what it appends", size=16, is_bold=True)
    canvas.legend(_LEFT, 48, _LEGEND)
    sheet = _Sheet.of(nodes)
    for node in nodes:
        for prev in node.prevs:
            canvas.line(sheet.path(prev.number, node.number), PALE)
    for node in nodes:
        x, y = sheet.corner(node.number)
        paint = _PAINTS.get(node.kind, _TEXT)
        canvas.box(x, y, sheet.box_width, _BOX_HEIGHT, paint, str(node))
        label = f"{node.kind} {_label(node)}"
        if node.kind in ("text", "hole"):
            label = _label(node) if node.kind == "text" else f"<{node.label}>"
        canvas.words(x + 6, y + _BOX_HEIGHT / 2, fitted(label, sheet.box_width - 12))
    return canvas.finish(_TOP + max(sheet.band_rows, 1) * _ROW + 10)


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Where everything stands.

    Args:
        places: column and row of each node, by its number.
        num_columns: of one band.
        band_rows: rows of one band; what is further down stands in the next one, to the right.
        num_bands: how many there are.
        taken: the places, to look them up.
    """

    places: Mapping[int, tuple[int, int]]
    num_columns: int
    band_rows: int
    num_bands: int
    taken: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, nodes: Sequence[GraphNode]) -> _Sheet:
        """The sheet for these nodes. Pure."""
        places = _places(nodes)
        num_columns = 1 + max((column for column, _ in places.values()), default=0)
        num_rows = 1 + max((row for _, row in places.values()), default=-1)
        most_bands = max(1, _MOST_COLUMNS // 2 // num_columns)
        num_bands = min(most_bands, max(1, -(-num_rows // _MANY_ROWS)))
        taken = frozenset(places.values())
        return cls(places, num_columns, -(-num_rows // num_bands), num_bands, taken)

    @property
    def pitch(self) -> float:
        """Pixels from one box to the next one on its right. Pure."""
        num_across = self.num_columns * self.num_bands
        return min(_WIDEST, (WIDTH - 2 * _LEFT) / num_across)

    @property
    def box_width(self) -> float:
        """Width of each box in pixels. Pure."""
        return max(self.pitch - _GUTTER, self.pitch / 2)

    def corner(self, number: int) -> tuple[float, float]:
        """The upper left corner of a node's box. Pure."""
        column, row = self.places[number]
        band, row = divmod(row, self.band_rows)
        across = band * self.num_columns + column
        return _LEFT + across * self.pitch, _TOP + row * _ROW

    def path(self, start: int, end: int) -> list[tuple[float, float]]:
        """A line from one box to a later one that crosses no box. Pure."""
        (start_column, start_row), (_, end_row) = self.places[start], self.places[end]
        (start_x, start_y), (end_x, end_y) = self.corner(start), self.corner(end)
        middle, above = self.box_width / 2, end_y - _GAP
        first, last = (start_x + middle, start_y + _BOX_HEIGHT), (end_x + middle, end_y)
        if self._is_free(start_column, start_row, end_row):
            return [first, (first[0], above), (last[0], above), last]
        below = first[1] + _GAP
        is_right = end_x > start_x
        gutter = (end_x if is_right else start_x) - (self.pitch - self.box_width) / 2
        return [
            *(first, (first[0], below), (gutter, below)),
            *((gutter, above), (last[0], above), last),
        ]

    def _is_free(self, column: int, start_row: int, end_row: int) -> bool:
        """Whether nothing stands in a column between two rows of one band. Pure."""
        is_one_band = start_row // self.band_rows == end_row // self.band_rows
        return is_one_band and not any(
            (column, row) in self.taken for row in range(start_row + 1, end_row)
        )


def _places(nodes: Sequence[GraphNode]) -> dict[int, tuple[int, int]]:
    """Column and row of each node, no two alike. Pure."""
    num_states = len({node.state for node in nodes})
    num_columns = _MOST_COLUMNS
    while num_columns < num_states:
        found = _packed(nodes, num_columns)
        if found is not None:
            return found
        num_columns *= 2  # states inside states inside states: each holds a column
    return _packed(nodes, num_states) or {}


def _packed(nodes: Sequence[GraphNode], num_columns: int) -> dict[int, tuple[int, int]] | None:
    """Places in so many columns: a state without a free one waits for the next that ends.

    None if a state would wait for one that waits for it. Pure.
    """
    delays: dict[int, int] = {}
    while max(delays.values(), default=0) <= len(nodes):
        rows = _rows(nodes, delays)
        columns, late = _columns(_spans(nodes, rows), num_columns)
        if not late:
            return {node.number: (columns[node.state], rows[node.number]) for node in nodes}
        delays |= late
    return None


def _spans(nodes: Sequence[GraphNode], rows: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """First and last row of each state; the program's own column is never another's. Pure."""
    spans: dict[int, tuple[int, int]] = {}
    for node in nodes:
        row = rows[node.number]
        first, last = spans.get(node.state, (row, row))
        spans[node.state] = first, max(last, row)
    if 0 in spans:
        spans[0] = 0, max(rows.values())
    return spans


def _columns(
    spans: Mapping[int, tuple[int, int]], num_columns: int
) -> tuple[dict[int, int], dict[int, int]]:
    """A column for each state, and from which row on for those that find none free. Pure."""
    columns: dict[int, int] = {}
    late: dict[int, int] = {}
    free_from = [0] * num_columns
    for state in sorted(spans, key=lambda state: (spans[state][0], state)):
        first, last = spans[state]
        column = min(range(num_columns), key=lambda k: (max(free_from[k] - first, 0), k))
        wait = max(free_from[column] - first, 0)
        if wait:
            late[state] = first + wait
        columns[state], free_from[column] = column, last + wait + 1
    return columns, late


def _rows(nodes: Sequence[GraphNode], delays: Mapping[int, int]) -> dict[int, int]:
    """A row for each node, below all it depends on and not above its state's delay. Pure."""
    rows: dict[int, int] = {}
    for node in nodes:
        below = 1 + max((rows[prev.number] for prev in node.prevs), default=-1)
        rows[node.number] = max(below, delays.get(node.state, 0))
    return rows
