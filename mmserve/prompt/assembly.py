"""Stretches, tokens and media in order to token ids and spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mmserve.core import MediaRefused, MediaSpan, MediaStyle, TokensPart
from mmserve.prompt.styles import MediaItem, PictureStyle, Slot
from mmserve.prompt.tokenizer import Stretch, Tokenizer

__all__ = ["Assembly"]


class Assembly:
    """Token ids and spans as they grow; text waits, so that neighbours become one run.

    Args:
        tokenizer: for the text.
        media: spans' items by index of the media part.
        style: how the model's family writes media, or None if it sees none.
        picture_style: what stands around a picture.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        media: Sequence[Sequence[MediaItem]],
        style: MediaStyle | None,
        picture_style: PictureStyle,
    ) -> None:
        self._tokenizer = tokenizer
        self._media = media
        self._style = style
        self._picture_style = picture_style
        self._encoded: dict[str, list[int]] = {}
        self._waiting: list[Stretch] = []
        self.ids: list[int] = []
        self.spans: list[MediaSpan] = []
        self.tail: tuple[Stretch, ...] = ()
        """Text of the last flush; nothing of it where tokens or media came last."""
        self.is_tail_first = False
        """Whether nothing stands before the tail."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was added yet."""
        return not self.ids and not self._waiting

    def add(self, piece: Stretch | Slot | TokensPart) -> None:
        """Append text, tokens or a media part. Changes: ids and spans, perhaps later."""
        if isinstance(piece, Stretch):
            self._add_text(piece)
        elif isinstance(piece, TokensPart):
            self.flush()
            self.ids += piece.token_ids
        else:
            self._add_media(piece, self._media[piece.index])

    def flush(self) -> None:
        """Tokenize the waiting text. Changes: ids, the tail."""
        self.tail, self.is_tail_first = tuple(self._waiting), not self.ids
        self.ids += self._tokenizer.encode_stretches(self._waiting, at_start=not self.ids)
        self._waiting = []

    def move(self, prefix: Sequence[int], *, drop: int = 0) -> None:
        """Put tokens before all after dropping the first ones. Changes: ids and spans."""
        self.ids = [*prefix, *self.ids[drop:]]
        shift = len(prefix) - drop
        self.spans = [replace(span, start=span.start + shift) for span in self.spans]

    def _add_text(self, stretch: Stretch) -> None:
        if stretch.text:
            self._waiting.append(stretch)

    def _add_media(self, slot: Slot, items: Sequence[MediaItem]) -> None:
        media = self._style
        if media is None:
            message = "the model does not see this kind of media"
            raise MediaRefused(message, reason="unsupported")
        is_clip = any(item.kind == "video" for item in items)
        if is_clip and media.video_token_id is None:
            for number, item in enumerate(items, start=1):
                label = media.frame_label.format(number=number, timestamp_s=item.timestamp_s)
                self._add_text(Stretch(label))
                self._add_items([item], media.image_token_id, self._picture_style)
            return
        style = PictureStyle() if slot.is_wrapped else self._picture_style
        token_id = media.video_token_id if is_clip else None
        self._add_items(items, media.image_token_id if token_id is None else token_id, style)

    def _add_items(
        self, items: Iterable[MediaItem], token_id: int, style: PictureStyle
    ) -> None:
        self._add_text(Stretch(style.before, is_template=True))
        for item in items:
            pieces = item.layout.pieces
            places = [i for i, piece in enumerate(pieces) if isinstance(piece, int)]
            first, end = places[0], places[-1] + 1
            self._add_text(Stretch(_text(pieces[:first]), is_template=True))
            self.flush()
            self._add_span(item, pieces[first:end], token_id)
            self._add_text(Stretch(_text(pieces[end:]), is_template=True))
        self._add_text(Stretch(style.after, is_template=True))

    def _add_span(self, item: MediaItem, pieces: Sequence[str | int], token_id: int) -> None:
        """One span: runs of placeholders, and the text between them."""
        start = len(self.ids)
        runs: list[tuple[int, int]] = []
        for piece in pieces:
            begin = len(self.ids) - start
            if isinstance(piece, int):
                self.ids += [token_id] * piece
                runs.append((begin, begin + piece))
            else:
                self.ids += self._inner(piece)
        self.spans.append(
            MediaSpan(
                item.digest,
                start,
                len(self.ids) - start,
                item.kind,
                item.layout.is_atomic,
                tuple(runs) if len(runs) > 1 else (),
                item.layout.grid,
            )
        )

    def _inner(self, text: str) -> list[int]:
        """Token ids of text between placeholders; the same few come again and again."""
        if text not in self._encoded:
            stretch = [Stretch(text, is_template=True)]
            self._encoded[text] = self._tokenizer.encode_stretches(stretch, at_start=False)
        return self._encoded[text]


def _text(pieces: Iterable[str | int]) -> str:
    return "".join(piece for piece in pieces if isinstance(piece, str))
