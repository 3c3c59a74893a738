"""Strips of small pictures: what the model was shown in a sample's row."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mmserve.batch.asks import request_of
from mmserve.batch.looking import Renderer
from mmserve.batch.row import Row
from mmserve.batch.settings import AskSettings
from mmserve.core import MmserveError, PromptLook

__all__ = ["Strip", "draw_strips", "find_rows"]

_MAX_PICTURES = 8
_MAX_PICTURE_BYTES = 100_000


@dataclass(frozen=True, slots=True)
class Strip:
    """Pictures of one row as (data: address, caption), or why there are none.

    `total` counts frames and pictures of the row, shown or not.
    """

    pictures: tuple[tuple[str, str], ...] = ()
    total: int = 0
    note: str | None = None


def find_rows(rows: Iterable[object], lines: Iterable[int]) -> Iterator[Row]:
    """Rows of these lines. Cost: reads up to the last of them. Pure."""
    wanted = set(lines)
    found = (row for row in rows if isinstance(row, Row) and row.line in wanted)
    return islice(found, len(wanted))


def draw_strips(
    renderer: Renderer, rows: Iterable[Row], settings: AskSettings
) -> dict[int, Strip]:
    """The strip of each row by its line. Cost: fetches and decodes each row's media once."""
    return {row.line: _strip(renderer, row, settings) for row in rows}


def _strip(renderer: Renderer, row: Row, settings: AskSettings) -> Strip:
    try:
        look = renderer.render(request_of(row, 0, settings))
    except MmserveError as error:
        return Strip(note=f"no pictures: {error.message}")
    shown = list(_pictures(look))
    if not shown:
        return Strip(note="no pictures: the media have none to show")
    step = max(1.0, len(shown) / _MAX_PICTURES)
    places = [int(step * place) for place in range(min(_MAX_PICTURES, len(shown)))]
    return Strip(tuple(shown[place] for place in places), len(shown))


def _pictures(look: PromptLook) -> Iterator[tuple[str, str]]:
    for number, span in enumerate(look.spans, start=1):
        for place, picture in enumerate(span.pictures):
            if len(picture) > _MAX_PICTURE_BYTES or not picture.startswith(b"\xff\xd8"):
                continue
            is_timed = place < len(span.timestamps_s)
            caption = f"{span.timestamps_s[place]:.1f} s" if is_timed else f"picture {number}"
            content = base64.b64encode(picture).decode("ascii")
            yield f"data:image/jpeg;base64,{content}", caption
