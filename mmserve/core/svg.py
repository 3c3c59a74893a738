"""A small canvas for drawings that a browser shows: boxes, lines, words, a legend.

Dark words on light boxes. Colours are told apart with any kind of colour vision and are never
the only sign: what is not there is dashed, and every box may have a title to hover over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

__all__ = ["INK", "PALE", "WIDTH", "Canvas", "Paint", "cut", "fitted", "printable"]

WIDTH = 1200.0
"""Width of a drawing in pixels, unless it says another."""
INK = "#1f2328"
PALE = "#59636e"
"""Words that matter less."""
_EM = 0.61
"""Width of a character over the size of the font, on the safe side for digits and capitals."""


@dataclass(frozen=True, slots=True)
class Paint:
    """How a box looks; `is_dashed` is for what is not there."""

    fill: str
    edge: str
    is_dashed: bool = False


class Canvas:
    """Shapes in the order of drawing; `finish` gives the file.

    Coordinates and sizes are pixels from the upper left corner. All words are escaped here, and
    what XML cannot hold becomes "?".
    """

    def __init__(self, title: str, width: float = WIDTH) -> None:
        self._title = printable(title)
        self._width = width
        self._shapes: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, paint: Paint, title: str = ""
    ) -> None:
        """A filled box. Changes: the canvas."""
        dash = ' stroke-dasharray="4 2"' if paint.is_dashed else ""
        shape = (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
            f'height="{height:.1f}" fill="{paint.fill}" stroke="{paint.edge}"{dash}'
        )
        self._shapes.append(_titled(shape, "rect", title))

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str = PALE,
        *,
        width: float = 1.0,
        title: str = "",
    ) -> None:
        """A line through points. Changes: the canvas."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        shape = (
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"'
        )
        self._shapes.append(_titled(shape, "polyline", title))

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12.0,
        anchor: str = "start",
        colour: str = INK,
        is_bold: bool = False,
    ) -> None:
        """One line of words whose middle is at height y. Changes: the canvas."""
        weight = ' font-weight="600"' if is_bold else ""
        self._shapes.append(
            f'<text x="{x:.1f}" y="{y + size * 0.35:.1f}" font-size="{size:g}" '
            f'text-anchor="{anchor}" fill="{colour}"{weight}>{escape(printable(text))}</text>'
        )

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, Paint]]) -> None:
        """What the boxes mean, from left to right. Changes: the canvas."""
        for name, paint in entries:
            self.box(x, y - 6, 18, 12, paint)
            self.words(x + 24, y, name, colour=PALE)
            x += 24 + len(name) * 12 * _EM + 14

    def finish(self, height: float) -> str:
        """The whole drawing as an SVG file of this height. Pure."""
        size = f'width="{self._width:.0f}" height="{height:.0f}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
                f'viewBox="0 0 {self._width:.0f} {height:.0f}" role="img" '
                f"aria-label={quoteattr(self._title)} "
                "font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\">",
                f"<title>{escape(self._title)}</title>",
                f'<rect {size} fill="#ffffff"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def fitted(text: str, width: float, size: float = 12.0) -> str:
    """As much of a text as `width` pixels hold; "" if not even a few letters do. Pure."""
    return cut(text, int(width / (size * _EM)))


def cut(text: str, num_letters: int) -> str:
    """A printable text of at most so many letters, ".." where it was cut. Pure."""
    text = printable(text)
    if len(text) <= num_letters:
        return text
    return text[: num_letters - 2].rstrip(" ,[") + ".." if num_letters >= 5 else ""


def printable(text: str) -> str:
    """A text without what neither XML nor a terminal can show. Pure."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _titled(shape: str, name: str, title: str) -> str:
    if not title:
        return f"{shape}/>"
    return f"{shape}><title>{escape(printable(title))}</title></{name}>"
