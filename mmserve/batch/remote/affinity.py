"""Which server a group of questions belongs to: decided by its media alone.

    media of a request -> key -> servers by score of (key, url), best first

So every question about a clip is asked where the clip is decoded, encoded and prefilled. If a
server is taken out, its groups spread over all others, and no other group moves.

Source: rendezvous hashing (Thaler and Ravishankar, 1998). The bound on a server's load, see
`Board`, is that of "Consistent Hashing with Bounded Loads" (Mirrokni et al., 2018).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from mmserve.core import (
    BytesSource,
    FramesSource,
    ImagePart,
    MediaSource,
    Part,
    PathSource,
    Request,
    Turn,
    UrlSource,
    VideoPart,
)

__all__ = ["media_key", "ranked"]

_KEY_BYTES = 16


def media_key(request: Request) -> bytes:
    """What a request's group is known by: its media, in order; its parts if it has none. Pure.

    How a clip is sampled does not count: a server decodes a file for all samplings of it.
    """
    words = tuple(_words(request.parts)) or (repr(request.parts).encode(),)
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    for word in words:
        digest.update(len(word).to_bytes(8, "big") + word)
    return digest.digest()


def _words(parts: Iterable[Part]) -> Iterator[bytes]:
    for part in parts:
        match part:
            case Turn():
                yield from _words(part.parts)
            case ImagePart() | VideoPart():
                yield from _source_words(part.source)


def _source_words(source: MediaSource) -> Iterator[bytes]:
    match source:
        case UrlSource(url):
            yield b"url " + url.encode(errors="replace")
        case PathSource(path):
            yield b"path " + path.encode(errors="replace")
        case BytesSource(content):
            yield b"bytes " + hashlib.blake2b(content).digest()
        case FramesSource(frames):
            for frame in frames:
                yield from _source_words(frame)


def ranked(key: bytes, urls: Iterable[str]) -> list[str]:
    """The servers, the one that the key prefers first. Pure."""
    return sorted(urls, key=lambda url: hashlib.blake2b(url.encode(), key=key).digest())
