r"""A grammar and an answer as an SVG picture: ways of the automaton, below them the steps.

(1) -- [{"shape":"] -- (2) -- [c] --- (3)       what is chosen is blue, what is forced yellow
                          \-- [t][riangle","]

 1   [{"] [shape] [":"] [star]     |#    |  9 of 768   square|triangle|circle
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmserve.constrained.show.graph import Graph, Route
from mmserve.constrained.show.layout import Spot, lay_out
from mmserve.constrained.show.text import counts_line, joined, share_of, sums_line, title_of
from mmserve.constrained.show.way import Step, Way
from mmserve.core import Constraint
from mmserve.core.svg import INK, PALE, WIDTH, Canvas, Paint, cut, fitted

__all__ = ["draw_picture"]

_MARGIN = 24.0
_LETTER, _PADDING = 7.6, 11.0
_ROW, _BOX = 28.0, 22.0
_GAP, _TAG = 24.0, 40.0
_PLACE = 46.0
_MOST_CHOSEN, _MOST_FORCED = 20, 30
_CHIPS, _MOST_CHIPS, _BAR, _COUNT = 62.0, 640.0, 54.0, 106.0
_MAX_STEPS = 48
_BLANK = "\u00b7"
_CHOSEN = Paint("#a9d3ef", "#2b6a94")
_FORCED = Paint("#f5c26b", "#8a5a00")
_WAITING = Paint("#ffffff", "#8a5a00", is_dashed=True)
_REPLACED = Paint("#eceff1", "#7b858f", is_dashed=True)
_STATE = Paint("#f6f8fa", "#59636e")
_EMPTY = Paint("#ffffff", "#98a2b3")
_END = Paint("#d9efdc", "#2f7d3b")
_LEGEND = (
    ("chosen by the model", _CHOSEN),
    ("forced: appended at once", _FORCED),
    ("forced, its tokens not yet certain", _WAITING),
    ("gave way to other tokens", _REPLACED),
    ("may end here", _END),
)


def draw_picture(constraint: Constraint, graph: Graph | None, way: Way | None) -> str:
    """The automaton and the answer's steps, whichever there are, as an SVG file. Pure."""
    canvas = Canvas("constrained answer")
    title = fitted(title_of(constraint, 400), WIDTH - 2 * _MARGIN, 16)
    canvas.words(_MARGIN, 28, title, size=16, is_bold=True)
    canvas.words(_MARGIN, 52, f"{counts_line(graph)}; {_BLANK} is a blank", colour=PALE)
    canvas.legend(_MARGIN, 78, _LEGEND)
    y = 110.0
    if graph is not None:
        y = _draw_graph(canvas, graph, y) + 14
    if way is not None:
        y = _draw_way(canvas, way, y)
    return canvas.finish(y + 10)


# --- the automaton -----------------------------------------------------------------------


def _draw_graph(canvas: Canvas, graph: Graph, y: float) -> float:
    """Draw it from height y on; gives the height below it. Changes: the canvas."""
    room = WIDTH - 2 * _MARGIN - _PLACE
    for band in lay_out(graph, _width, room).bands:
        num_rows = max(map(len, band))
        x = _MARGIN
        corners: dict[int, tuple[float, float]] = {}
        sizes: dict[int, float] = {}
        for column in band:
            top = y + (num_rows - len(column)) * _ROW / 2
            is_places = any(spot.place is not None for spot in column)
            width = _PLACE if is_places else max(map(_spot_width, column))
            for spot in column:
                corners[id(spot)] = x, top + spot.row * _ROW
                sizes[id(spot)] = _PLACE if spot.place is not None else _spot_width(spot)
                if spot.place is None and spot.route is None:
                    sizes[id(spot)] = width
            x += width + (_GAP if is_places else _TAG)
        _draw_lines(canvas, band, corners, sizes)
        for column in band:
            for spot in column:
                _draw_spot(canvas, spot, corners[id(spot)])
        y += num_rows * _ROW + 12
    if not graph.is_whole:
        note = f"only the {len(graph.places)} places nearest to the start are drawn"
        canvas.words(_MARGIN, y + 4, note, colour=PALE)
        y += 22
    return y


def _width(routes: Sequence[Route]) -> float:
    widest = max(map(_route_width, routes), default=0.0)
    return _PLACE + _GAP + widest + _TAG


def _spot_width(spot: Spot) -> float:
    return 0.0 if spot.route is None else _route_width(spot.route)


def _route_width(route: Route) -> float:
    return sum(_box_width(text) for text, _ in _parts(route))


def _parts(route: Route) -> Iterator[tuple[str, Paint]]:
    if route.chosen:
        yield _dotted(cut(route.chosen, _MOST_CHOSEN)), _CHOSEN
    if route.forced:
        yield _dotted(cut(route.forced, _MOST_FORCED)), _FORCED


def _dotted(text: str) -> str:
    """A text whose blanks are seen; XML would lose those at its ends."""
    return text.replace(" ", _BLANK)


def _box_width(text: str) -> float:
    return len(text) * _LETTER + _PADDING


def _draw_lines(
    canvas: Canvas,
    band: Sequence[Sequence[Spot]],
    corners: dict[int, tuple[float, float]],
    sizes: dict[int, float],
) -> None:
    for column in band:
        right = max(corners[id(spot)][0] + sizes[id(spot)] for spot in column)
        for spot in column:
            x, y = corners[id(spot)]
            x += sizes[id(spot)]
            for goal in spot.after:
                end_x, end_y = corners[id(goal)]
                points = [(x, y + _BOX / 2), (right, y + _BOX / 2), (end_x, end_y + _BOX / 2)]
                if goal.place is None and goal.route is None:  # on through a free lane
                    points.append((end_x + sizes[id(goal)], end_y + _BOX / 2))
                canvas.line(points)


def _draw_spot(canvas: Canvas, spot: Spot, corner: tuple[float, float]) -> None:
    x, y = corner
    if spot.place is not None:
        place = spot.place
        notes = [f"state {place.number}"]
        if place.may_end:
            notes.append("the answer may end here")
        if place.num_alike > 1:
            notes.append(f"{place.num_alike:,} such states in a row")
        if place.num_hidden:
            notes.append(f"{place.num_hidden:,} more ways are not drawn")
        paint = _END if place.may_end else _STATE
        canvas.box(x, y, _PLACE, _BOX, paint, ", ".join(notes))
        label = f"{place.number}" + ("+" if place.num_hidden else "")
        if place.num_alike > 1:
            label += f" x{place.num_alike}"
        canvas.words(
            x + _PLACE / 2,
            y + _BOX / 2,
            fitted(label, _PLACE - 2, 11),
            size=11,
            anchor="middle",
        )
    elif spot.route is not None:
        route = spot.route
        where = f"to state {route.target}" if route.target else "to a state not drawn"
        for text, paint in _parts(route):
            title = f"{'chosen' if paint is _CHOSEN else 'forced'}: "
            title += route.chosen if paint is _CHOSEN else route.forced
            canvas.box(x, y, _box_width(text), _BOX, paint, f"{title}, {where}")
            canvas.words(x + 5, y + _BOX / 2, text)
            x += _box_width(text)
        if not spot.after:
            tag = f"to {route.target}" if route.target else ".."
            canvas.words(x + 4, y + _BOX / 2, tag, size=11, colour=PALE)


# --- the answer --------------------------------------------------------------------------


def _draw_way(canvas: Canvas, way: Way, y: float) -> float:
    """Draw it from height y on; gives the height below it. Changes: the canvas."""
    head = fitted(f"answer  {way.text}", WIDTH - 2 * _MARGIN, 14)
    canvas.words(_MARGIN, y + 8, head, size=14, is_bold=True)
    canvas.words(_MARGIN, y + 30, sums_line(way), colour=PALE)
    y += 52
    steps = way.steps[:_MAX_STEPS]
    rows = [_fitting(list(_chips(step))) for step in steps]
    right = _CHIPS + 24 + max([100.0, *(sum(chip.width + 4 for chip in row) for row in rows)])
    names = ((_MARGIN, "step"), (_CHIPS, "tokens"), (right, "may come"))
    for x, name in (*names, (right + _BAR + _COUNT, "for example")):
        canvas.words(x, y, name, colour=PALE, size=11)
    y += 14
    number = 0
    for step, row in zip(steps, rows, strict=True):
        if step.drawn is not None:
            number += 1
            canvas.words(_MARGIN, y + _BOX / 2, str(number))
            _draw_share(canvas, step, way.num_vocabulary, (right, y))
        x = _CHIPS
        for chip in row:
            canvas.box(x, y, chip.width, _BOX, chip.paint, chip.title)
            colour = PALE if chip.paint in (_WAITING, _REPLACED) else INK
            canvas.words(x + 5, y + _BOX / 2, chip.words, colour=colour)
            x += chip.width + 4
        y += _ROW
    if len(way.steps) > _MAX_STEPS:
        note = f"... {len(way.steps) - _MAX_STEPS:,} more steps"
        canvas.words(_MARGIN, y + 8, note, colour=PALE)
        y += 24
    return y


@dataclass(frozen=True, slots=True)
class _Chip:
    """A token, or text that waits."""

    text: str
    paint: Paint
    title: str

    @property
    def words(self) -> str:
        return _dotted(cut(self.text, _MOST_FORCED))

    @property
    def width(self) -> float:
        return _box_width(self.words)


def _fitting(chips: list[_Chip]) -> list[_Chip]:
    """The chips that there is room for; of too many, the middle ones are one."""
    room = _MOST_CHIPS - _box_width("..") - 4
    if sum(chip.width + 4 for chip in chips) <= room:
        return chips
    *first, last = chips
    room -= last.width + 4
    kept: list[_Chip] = []
    for chip in first:
        room -= chip.width + 4
        if room < 0:
            break
        kept.append(chip)
    hidden = first[len(kept) :]
    title = " ".join(chip.text for chip in hidden)
    return [*kept, _Chip("..", hidden[0].paint, title), last] if hidden else chips


def _chips(step: Step) -> Iterator[_Chip]:
    """What a step did, in its order; the drawn token last."""
    jump = step.forced
    if jump is not None:
        for token in jump.replaced:
            yield _Chip(token, _REPLACED, f"{token} gives way to other tokens")
        for token in jump.tokens:
            yield _Chip(token, _FORCED, f"{token} is forced")
        if jump.waiting:
            title = f"{jump.waiting} will come, in tokens not yet certain"
            yield _Chip(jump.waiting, _WAITING, title)
    if step.drawn is not None:
        yield _Chip(step.drawn or "(end)", _CHOSEN, f"{step.drawn or 'an end token'} is drawn")


def _draw_share(
    canvas: Canvas, step: Step, num_vocabulary: int, corner: tuple[float, float]
) -> None:
    x, y = corner
    share = step.num_allowed / max(num_vocabulary, 1)
    title = f"{step.num_allowed:,} of {num_vocabulary:,} tokens may come"
    canvas.box(x, y + 5, _BAR, _BOX - 10, _EMPTY, title)
    canvas.box(x, y + 5, _BAR * share, _BOX - 10, _CHOSEN, title)
    x += _BAR + 8
    canvas.words(
        x, y + _BOX / 2, f"{step.num_allowed:,} ({share_of(step, num_vocabulary)})", size=11
    )
    some = ("(end)", *step.some) if step.may_end else step.some
    x += _COUNT - 8
    letters = int((WIDTH - _MARGIN - x) / (11 * 0.61))
    canvas.words(x, y + _BOX / 2, _dotted(joined(some, letters)), size=11, colour=PALE)
