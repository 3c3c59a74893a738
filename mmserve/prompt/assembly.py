"""Stretches, tokens and media in order to token ids and spans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmserve.core import MediaRefused, MediaSpan, TokensPart
from mmserve.prompt.styles import MediaItem, PictureStyle, Slot, VideoStyle
from mmserve.prompt.tokenizer import Stretch, Tokenizer

__all__ = ["Assembly"]


class Assembly:
    """Token ids and spans as they grow; text waits, so that neighbours become one run.

    Args:
        tokenizer: for the text.
        media: spans' items by index of the media part.
        image_token_id: placeholder of a picture's tokens.
        picture_style, video_style: what stands around media.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        media: Sequence[Sequence[MediaItem]],
        image_token_id: int | None,
        picture_style: PictureStyle,
        video_style: VideoStyle,
    ) -> None:
        self._tokenizer = tokenizer
        self._media = media
        self._image_token_id = image_token_id
        self._picture_style = picture_style
        self._video_style = video_style
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
        self.spans = [
            MediaSpan(
                span.digest, span.start + shift, span.num_tokens, span.kind, span.is_atomic
            )
            for span in self.spans
        ]

    def _add_text(self, stretch: Stretch) -> None:
        if stretch.text:
            self._waiting.append(stretch)

    def _add_media(self, slot: Slot, items: Sequence[MediaItem]) -> None:
        native_id = self._video_style.token_id
        is_clip = any(item.kind == "video" for item in items)
        if is_clip and native_id is None:
            for number, item in enumerate(items, start=1):
                label = self._video_style.frame_format.format(
                    number=number, timestamp_s=item.timestamp_s
                )
                self._add_text(Stretch(label))
                self._add_spans([item], self._image_token_id, self._picture_style)
        else:
            token_id = native_id if is_clip else self._image_token_id
            style = PictureStyle() if slot.is_wrapped else self._picture_style
            self._add_spans(items, token_id, style)

    def _add_spans(
        self, items: Iterable[MediaItem], token_id: int | None, style: PictureStyle
    ) -> None:
        if token_id is None:
            message = "the model does not see this kind of media"
            raise MediaRefused(message, reason="unsupported")
        self._add_text(Stretch(style.before, is_template=True))
        for item in items:
            self.flush()
            is_atomic = bool(getattr(item, "is_atomic", False))
            self.spans.append(
                MediaSpan(item.digest, len(self.ids), item.num_tokens, item.kind, is_atomic)
            )
            self.ids += [token_id] * item.num_tokens
        self._add_text(Stretch(style.after, is_template=True))
