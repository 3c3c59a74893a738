"""What a state has said so far: parts and turns for requests, text and messages for readers."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from mmserve.core import (
    BytesSource,
    FramesSource,
    ImagePart,
    MediaSource,
    Part,
    PathSource,
    RawPart,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.lang.media import media_type

__all__ = ["Conversation", "Piece", "source_url"]

Piece = TextPart | RawPart | ImagePart | VideoPart


class Conversation:
    """Parts in order, the last turn perhaps open. Mutable; owned by one execution.

    `is_fresh` says that something was appended since a call last computed the content. `added`
    holds the pieces appended since this conversation was copied, `has_turned` whether a turn
    began or ended since.
    """

    def __init__(self) -> None:
        self._closed: list[Part] = []
        self._open: list[Piece] = []
        self.role: str | None = None
        self.is_fresh = False
        self.added: list[Piece] = []
        self.has_turned = False

    def copy(self) -> Conversation:
        """An independent conversation with the same content; nothing counts as added. Pure."""
        twin = Conversation()
        twin._closed = list(self._closed)
        twin._open = list(self._open)
        twin.role = self.role
        twin.is_fresh = self.is_fresh
        return twin

    def add(self, piece: Piece) -> None:
        """Append a piece to the open turn, or outside all turns. Changes: the conversation."""
        if isinstance(piece, (TextPart, RawPart)) and not piece.text:
            return
        self.is_fresh = True
        _append(self.added, piece)
        _append(self._closed if self.role is None else self._open, piece)

    def begin(self, role: str) -> None:
        """Open a turn. Changes: the conversation."""
        self.role = role
        self._open = []
        self.has_turned = True

    def end(self) -> None:
        """Close the open turn. Changes: the conversation."""
        self._closed.append(Turn(self.role or "", tuple(self._open)))
        self.role = None
        self._open = []
        self.has_turned = True

    def parts(self) -> tuple[Part, ...]:
        """The parts of a request that continues here. Pure."""
        if self.role is None:
            return tuple(self._closed)
        return (*self._closed, Turn(self.role, tuple(self._open), is_open=True))

    def open_pieces(self) -> tuple[Piece, ...]:
        """The content of the open turn so far; none outside turns. Pure."""
        return () if self.role is None else tuple(self._open)

    def open_text(self) -> str:
        """The text of the open turn so far; "" outside turns. Pure."""
        pieces = self.open_pieces()
        return "".join(part.text for part in pieces if isinstance(part, (TextPart, RawPart)))

    def messages(self) -> list[dict[str, object]]:
        """The turns in OpenAI form; text outside turns has no place in it. Pure."""
        turns = [part for part in self.parts() if isinstance(part, Turn)]
        return [{"role": turn.role, "content": _content(turn.parts)} for turn in turns]


def _append(pieces: list[Part] | list[Piece], piece: Piece) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(piece, TextPart) and isinstance(last, TextPart):
        pieces[-1] = TextPart(last.text + piece.text)
    elif isinstance(piece, RawPart) and isinstance(last, RawPart):
        pieces[-1] = RawPart(last.text + piece.text)
    else:
        pieces.append(piece)


def _content(pieces: Iterable[Piece]) -> str | list[dict[str, object]]:
    pieces = tuple(pieces)
    if all(isinstance(piece, (TextPart, RawPart)) for piece in pieces):
        return "".join(piece.text for piece in pieces if isinstance(piece, (TextPart, RawPart)))
    return [_message_part(piece) for piece in pieces]


def _message_part(piece: Piece) -> dict[str, object]:
    if isinstance(piece, ImagePart):
        return {"type": "image_url", "image_url": {"url": source_url(piece.source)}}
    if isinstance(piece, VideoPart):
        return {"type": "video_url", "video_url": _clip(piece.source)}
    return {"type": "text", "text": piece.text}


def _clip(source: MediaSource) -> dict[str, object]:
    if isinstance(source, FramesSource):
        return {"frames": [source_url(frame) for frame in source.frames], "fps": source.fps}
    return {"url": source_url(source)}


def source_url(source: MediaSource) -> str:
    """An address that holds or names the content: data URLs for local content. Pure."""
    match source:
        case UrlSource(url):
            return url
        case PathSource(path):
            return path
        case BytesSource(content):
            encoded = base64.b64encode(content).decode("ascii")
            return f"data:{media_type(content)};base64,{encoded}"
        case FramesSource():
            message = "a clip of frames has no single address"
            raise ValueError(message)
