"""Requests in the form of Anthropic's Messages API.

    system "S"   user "A" P   user "B"   assistant (open) "So: "
 -> system: S    user [A, P, B]          assistant [So:]            owed: " "

That API takes texts of system turns apart, wants roles to alternate, and refuses blocks of
white space and white space at the end of a turn to continue. So blocks of white space are left
out, and the white space at the end is owed: an answer may begin with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmserve.core import (
    BadRequest,
    BytesSource,
    ImagePart,
    MediaRefused,
    MediaSource,
    Part,
    RawPart,
    TextPart,
    Turn,
    UnsupportedByBackend,
    UrlSource,
    VideoPart,
)
from mmserve.lang.backends.answer_text import space_at_end
from mmserve.lang.backends.clip_frames import frame_pictures
from mmserve.lang.conversation import source_url

__all__ = ["Prompt", "prompt_of"]

_FORMATS = ("image/jpeg", "image/png", "image/gif", "image/webp")
_DATA = "data:"
_MARK = ";base64,"

Block = dict[str, object]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent: `system` is empty without system turns; `owed` is never sent.

    `is_partial` says that the last message is a turn that the answer continues.
    """

    system: str
    messages: list[dict[str, object]]
    owed: str
    is_partial: bool


def prompt_of(parts: Sequence[Part], backend: str) -> Prompt:
    """The messages of a request whose answer comes in its last, open turn.

    Raises UnsupportedByBackend, MediaRefused and BadRequest for what the API has no form for.
    Cost: clips are decoded here, recent ones are remembered.
    """
    turns = [_turn(part, backend) for part in parts]
    system = [_system_text(turn, backend) for turn in turns if turn.role == "system"]
    open_blocks: list[Block] = []
    spoken: list[tuple[str, list[Block]]] = []
    for turn in turns:
        blocks = [] if turn.role == "system" else list(_blocks(turn, backend))
        if turn.is_open:
            open_blocks = blocks
        elif blocks and spoken and spoken[-1][0] == turn.role:
            spoken[-1][1].extend(blocks)
        elif blocks:
            spoken.append((turn.role, blocks))
    if not spoken or spoken[-1][0] != "user":
        message = f"{backend} answers a user turn, and the last turn is none"
        raise BadRequest(
            message, field="messages", reason="order", hint="append a user turn before the gen"
        )
    owed = space_at_end(turns[-1])
    if open_blocks:
        last = open_blocks[-1]
        if "text" in last:
            open_blocks[-1] = {"type": "text", "text": str(last["text"]).rstrip()}
        spoken.append(("assistant", open_blocks))
    messages: list[dict[str, object]] = [
        {"role": role, "content": blocks} for role, blocks in spoken
    ]
    joined = "\n\n".join(filter(None, system))
    return Prompt(joined, messages, owed, is_partial=bool(open_blocks))


def _turn(part: Part, backend: str) -> Turn:
    if isinstance(part, Turn):
        return part
    raise _refusal(backend, "text outside turns", "put it in a user turn")


def _system_text(turn: Turn, backend: str) -> str:
    if any(isinstance(piece, ImagePart | VideoPart) for piece in turn.parts):
        raise _refusal(backend, "media in a system turn", "put them in a user turn")
    text = "".join(piece.text for piece in turn.parts if isinstance(piece, TextPart | RawPart))
    return text if text.strip() else ""


def _blocks(turn: Turn, backend: str) -> Iterator[Block]:
    text = ""
    for piece in turn.parts:
        if isinstance(piece, TextPart | RawPart):
            text += piece.text
            continue
        if text.strip():
            yield {"type": "text", "text": text}
        text = ""
        pictures = frame_pictures(piece) if isinstance(piece, VideoPart) else (piece,)
        for picture in pictures:
            yield {"type": "image", "source": _source(picture.source, backend)}
    if text.strip():
        yield {"type": "text", "text": text}


def _source(source: MediaSource, backend: str) -> dict[str, object]:
    if isinstance(source, BytesSource):
        url = source_url(source)
    elif isinstance(source, UrlSource):
        url = source.url
    else:
        url = ""
    if url.lower().startswith(("http:", "https:")):
        return {"type": "url", "url": url}
    head, mark, content = url.partition(_MARK)
    kind = head[len(_DATA) :].lower()
    if mark and head[: len(_DATA)].lower() == _DATA and kind in _FORMATS:
        return {"type": "base64", "media_type": kind, "data": content}
    message = f"{backend} takes JPEG, PNG, GIF and WebP pictures, this is {kind or 'none'}"
    raise MediaRefused(message, reason="unsupported", hint="convert it, or give its address")


def _refusal(backend: str, parameter: str, hint: str) -> UnsupportedByBackend:
    return UnsupportedByBackend(
        f"{backend} cannot serve {parameter}", parameter=parameter, backend=backend, hint=hint
    )
