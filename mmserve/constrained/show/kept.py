r"""The compiled grammars that an engine keeps, as text of 80 columns or as an SVG picture.

kind          uses     bytes  states  masks  text
regex            3    41,200      14      6  \{"shape":"(circle|square|triangle|st..
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mmserve.constrained.kept import KeptGrammar
from mmserve.constrained.pool import CompileCounts
from mmserve.constrained.show.text import text_of
from mmserve.core.svg import PALE, WIDTH, Canvas, Paint, cut, fitted

__all__ = ["draw_kept"]

_COLUMNS = 80
_MAX_SHOWN = 40
_MARGIN, _ROW = 24.0, 26.0
_BAR = 160.0
_PAINTS = {
    "own automaton: regex, choices": Paint("#a9d3ef", "#2b6a94"),
    "llguidance: JSON, grammars": Paint("#f5c26b", "#8a5a00"),
}
_HEADS = (("uses", 7), ("bytes", 11), ("states", 8), ("masks", 7))


def draw_kept(
    kept: Sequence[KeptGrammar], counts: CompileCounts, form: Literal["text", "svg"] = "text"
) -> str:
    """What is kept, used last first, at most 40 of them, and what the pool has done. Pure."""
    return _text(kept, counts) if form == "text" else _picture(kept, counts)


def _headlines(counts: CompileCounts) -> list[str]:
    lines = [
        f"grammars: {counts.num_kept:,} kept in {counts.kept_bytes:,} bytes; "
        f"requests that wait for one: {counts.num_waiting:,}",
        f"{counts.num_compiled:,} compiled, {counts.num_hits:,} found compiled or under way, "
        f"{counts.compile_ms:,.0f} ms spent",
    ]
    refused = [
        f"{number:,} {reason.replace('_', ' ')}"
        for reason, number in counts.refused.items()
        if number
    ]
    return [*lines, f"refused: {', '.join(refused)}"] if refused else lines


def _numbers(one: KeptGrammar) -> tuple[str, ...]:
    numbers = (one.num_uses, one.num_bytes, one.num_states, one.num_masks)
    return tuple("" if number is None else f"{number:,}" for number in numbers)


def _text(kept: Sequence[KeptGrammar], counts: CompileCounts) -> str:
    lines = _headlines(counts)
    if kept:
        heads = "".join(f"{name:>{width}}" for name, width in _HEADS)
        lines += ["", f"{'kind':<11}{heads}  text"]
    for one in kept[:_MAX_SHOWN]:
        pairs = zip(_numbers(one), _HEADS, strict=True)
        numbers = "".join(f"{number:>{width}}" for number, (_, width) in pairs)
        line = f"{one.constraint.kind:<11}{numbers}  "
        lines.append(line + cut(text_of(one.constraint), _COLUMNS - len(line)))
    if len(kept) > _MAX_SHOWN:
        lines.append(f"... {len(kept) - _MAX_SHOWN:,} more")
    return "\n".join(line.rstrip() for line in lines)


def _picture(kept: Sequence[KeptGrammar], counts: CompileCounts) -> str:
    canvas = Canvas("compiled grammars")
    head, *notes = _headlines(counts)
    canvas.words(_MARGIN, 28, head, size=16, is_bold=True)
    canvas.words(_MARGIN, 52, "; ".join(notes), colour=PALE)
    canvas.legend(_MARGIN, 78, _PAINTS.items())
    most = max((one.num_bytes for one in kept), default=1)
    y = 118.0
    ends = _ends()
    canvas.words(_MARGIN, y - 14, "kind", size=11, colour=PALE)
    for (name, _), x in zip(_HEADS, ends, strict=True):
        canvas.words(x, y - 14, name, size=11, anchor="end", colour=PALE)
    canvas.words(ends[-1] + _BAR + 32, y - 14, "text", size=11, colour=PALE)
    for one in kept[:_MAX_SHOWN]:
        _draw_row(canvas, one, y, one.num_bytes / max(most, 1))
        y += _ROW
    if len(kept) > _MAX_SHOWN:
        canvas.words(_MARGIN, y + 8, f"... {len(kept) - _MAX_SHOWN:,} more", colour=PALE)
        y += _ROW
    return canvas.finish(y + 10)


def _ends() -> list[float]:
    """The right edges of the columns of numbers."""
    x, found = _MARGIN + 90, []
    for _, width in _HEADS:
        x += 8.0 * width
        found.append(x)
    return found


def _draw_row(canvas: Canvas, one: KeptGrammar, y: float, share: float) -> None:
    ours, theirs = _PAINTS.values()
    text = text_of(one.constraint)
    canvas.words(_MARGIN, y + 10, one.constraint.kind, is_bold=True)
    for number, x in zip(_numbers(one), _ends(), strict=True):
        canvas.words(x, y + 10, number, anchor="end")
    x = _ends()[-1] + 16
    paint = theirs if one.automaton is None else ours
    canvas.box(x, y + 2, _BAR * share, 16, paint, f"{one.num_bytes:,} bytes: {text[:400]}")
    x += _BAR + 16
    canvas.words(x, y + 10, fitted(text, WIDTH - _MARGIN - x), colour=PALE)
