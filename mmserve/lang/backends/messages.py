"""Requests as messages of a chat API: text and pictures in the order in which they stand.

    user "A" P "B" Q "?"   ->   {"role": "user", "content": [A, P, B, Q, ?]}
    assistant (open, empty)     left out: it is what the API answers with

Clips become pictures of their frames. For the chat API of OpenAI and all that speak it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmserve.core import (
    ImagePart,
    Part,
    RawPart,
    TextPart,
    Turn,
    UnsupportedByBackend,
    VideoPart,
)
from mmserve.lang.backends.clip_frames import frame_pictures
from mmserve.lang.conversation import source_url

__all__ = ["messages_of"]


def messages_of(parts: Sequence[Part], backend: str) -> list[dict[str, object]]:
    """The messages of a request; an open turn is the last one, unless it is empty.

    Raises UnsupportedByBackend for content outside turns, and MediaRefused for a clip that
    cannot be read. Cost: clips are decoded here, recent ones are remembered.
    """
    messages: list[dict[str, object]] = []
    for part in parts:
        if not isinstance(part, Turn):
            raise UnsupportedByBackend(
                f"{backend} cannot serve text outside turns",
                parameter="text outside turns",
                backend=backend,
                hint="put it in a user turn",
            )
        if part.parts or not part.is_open:
            messages.append({"role": part.role, "content": _content(part)})
    return messages


def _content(turn: Turn) -> str | list[dict[str, object]]:
    if all(isinstance(piece, TextPart | RawPart) for piece in turn.parts):
        return "".join(
            piece.text for piece in turn.parts if isinstance(piece, TextPart | RawPart)
        )
    return [item for piece in turn.parts for item in _items(piece)]


def _items(piece: TextPart | RawPart | ImagePart | VideoPart) -> Iterator[dict[str, object]]:
    if isinstance(piece, ImagePart):
        yield _picture(piece)
    elif isinstance(piece, VideoPart):
        yield from map(_picture, frame_pictures(piece))
    else:
        yield {"type": "text", "text": piece.text}


def _picture(part: ImagePart) -> dict[str, object]:
    named: dict[str, object] = {"url": source_url(part.source)}
    bounds = {"max_pixels": part.max_pixels, "min_pixels": part.min_pixels}
    named |= {name: value for name, value in bounds.items() if value is not None}
    return {"type": "image_url", "image_url": named}
