"""Where a row stands in the plan: what it is about, and what of its prompt others share.

    group      the first picture or clip of the row
    key        media | window, sampling | system text | question

Bytes of a key compare as its parts do, one after the other, and no part is the beginning of
another. So rows sorted by key are the trie of their prompts walked depth-first: rows that share
a beginning are neighbours.
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmserve.batch.row import Row
from mmserve.core import ImagePart, PathSource, Request, TextPart, Turn, UrlSource, VideoPart

__all__ = ["Route", "media_of", "medium_id", "route_of"]

_ID_BYTES = 16
_TOKENS_A_PICTURE = 64
_FRAMES_A_CLIP = 8
_BYTES_A_TOKEN = 4
_TOKENS_AN_ANSWER = 128


@dataclass(frozen=True, slots=True)
class Route:
    """A row's place among the others.

    Args:
        group_id: of all rows with this first picture or clip.
        key: sorts the rows of a group.
        work: about how many tokens the row costs: 64 for each picture or frame (8 frames where
            the row does not say how many), and for each answer a quarter of the question's
            bytes and the most tokens it may have.
    """

    group_id: bytes
    key: bytes
    work: int


def route_of(row: Row, request: Request) -> Route:
    """Where the row stands whose first question is `request`. Pure, but for links in paths."""
    media = media_of(request)
    identities = [medium_id(part) for part in media]
    pieces = [b"\1" + identity for identity in identities]
    pieces.append(b"\0")
    pieces += [_sampling(part) for part in media if isinstance(part, VideoPart)]
    pieces += [_text(turn.role) + _text(text) for turn, text in _texts(request)]
    return Route(identities[0] if identities else b"", b"".join(pieces), _work(row, request))


def media_of(request: Request) -> list[ImagePart | VideoPart]:
    """Pictures and clips of a request, in order. Pure."""
    return [
        part
        for turn in request.parts
        if isinstance(turn, Turn)
        for part in turn.parts
        if isinstance(part, ImagePart | VideoPart)
    ]


def medium_id(part: ImagePart | VideoPart) -> bytes:
    """16 bytes that name a file or address; two ways to write a path are one file."""
    match part.source:
        case PathSource(path):
            place = "path:" + os.path.realpath(Path(path).expanduser())
        case UrlSource(url):
            place = "url:" + url
        case other:
            place = repr(other)
    kind = "video" if isinstance(part, VideoPart) else "image"
    named = f"{kind}:{place}".encode("utf-8", "backslashreplace")
    return hashlib.blake2b(named, digest_size=_ID_BYTES).digest()


def _texts(request: Request) -> Iterator[tuple[Turn, str]]:
    """Texts of closed turns, the system's first, as prompts have them."""
    for turn in request.parts:
        if isinstance(turn, Turn) and not turn.is_open:
            yield from ((turn, part.text) for part in turn.parts if isinstance(part, TextPart))


def _sampling(part: VideoPart) -> bytes:
    window = (part.start_s or 0.0, math.inf if part.end_s is None else part.end_s)
    times_s = part.times_s or ()
    return b"".join(
        (
            *(_number(moment) for moment in window),
            _number(part.num_frames),
            _number(part.fps),
            _number(len(times_s)),
            *(_number(moment) for moment in times_s),
            b"\1" if part.key_frames else b"\0",
        )
    )


def _number(value: float | None) -> bytes:
    """Bytes that compare as numbers from 0 on do; None is least."""
    return b"\0" if value is None else b"\1" + struct.pack(">d", value)


def _text(text: str) -> bytes:
    """Bytes that compare as the text does, with an end that no text holds."""
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + b"\0\0"


def _work(row: Row, request: Request) -> int:
    pictures = sum(_num_pictures(part) for part in media_of(request))
    limit = request.sampling.max_new_tokens
    answer = _TOKENS_AN_ANSWER if limit is None else limit
    texts = sum(len(question) // _BYTES_A_TOKEN + answer for question in row.questions)
    return _TOKENS_A_PICTURE * pictures + row.num_samples * texts


def _num_pictures(part: ImagePart | VideoPart) -> int:
    if isinstance(part, ImagePart):
        return 1
    return len(part.times_s) if part.times_s else part.num_frames or _FRAMES_A_CLIP
