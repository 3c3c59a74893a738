"""Rows in the order of the plan, read some way ahead, so that their media are ready in time.

handed in ... | row  row  row | row ...        [at most `most_media` pictures and clips are
being answered| media prepared| not yet read    prepared and not handed in]
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmserve.batch.asks import request_of
from mmserve.batch.formats import RawRow
from mmserve.batch.job import Input, Planned, media_of
from mmserve.batch.row import Row
from mmserve.batch.settings import AskSettings
from mmserve.core import Broken, ImagePart, VideoPart

__all__ = ["Ahead", "Next", "Prepare"]

_MAX_ROWS = 256

Medium = ImagePart | VideoPart
Prepare = Callable[[Medium], None]


@dataclass(frozen=True, slots=True)
class Next:
    """A row whose turn it is, and the group it belongs to."""

    row: Row
    group_id: bytes
    media: tuple[Medium, ...] = ()


class Ahead:
    """Gives rows one by one, and has the media of those that follow prepared.

    Args:
        planned: what is left, in order.
        rows: reads contents.
        settings: how media are taken.
        prepare: has a picture or clip made ready; None if nobody can.
        most_media: pictures and clips prepared ahead.
    """

    def __init__(
        self,
        planned: Iterator[Planned],
        rows: Input,
        settings: AskSettings,
        prepare: Prepare | None,
        most_media: int,
    ) -> None:
        self._planned = planned
        self._rows = rows
        self._settings = settings
        self._prepare = prepare
        self._most_media = most_media if prepare is not None else 0
        self._read: deque[Next] = deque()
        self._media: Counter[Medium] = Counter()
        self._last: tuple[Medium, ...] = ()

    def next(self) -> Next | None:
        """The next row; None if there is no more. Changes: what is prepared."""
        first = self._read.popleft() if self._read else self._pull()
        if first is None:
            return None
        self._last = first.media
        self._media.subtract(first.media)
        self._media += Counter()  # keeps those that are used
        while len(self._media) < self._most_media and len(self._read) < _MAX_ROWS:
            row = self._pull()
            if row is None:
                break
            self._read.append(row)
        return first

    def _pull(self) -> Next | None:
        planned = next(self._planned, None)
        if planned is None:
            return None
        row = self._rows.parse(RawRow(planned.line, planned.content))
        if not isinstance(row, Row) or planned.group_id is None:
            raise Broken(f"line {planned.line} was a row when the run began, and is none now")
        media = tuple(media_of(request_of(row, 0, self._settings)))
        for medium in media:
            is_known = medium in self._media or medium in self._last
            if self._prepare is not None and self._most_media and not is_known:
                self._prepare(medium)
        self._media.update(media)
        return Next(row, planned.group_id, media)
