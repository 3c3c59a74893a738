"""Small pictures of what items show, for people: decoded anew, never kept.

items -> frames they show, the first 64 -> decoder, one pass a clip -> scaled -> JPEG
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from contextlib import closing

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import MmserveError
from mmserve.vision.children.port import Decoder
from mmserve.vision.items import ClipFrame, MediaItem, PictureFile, Source
from mmserve.vision.refusal import named
from mmserve.vision.wishes import Wishes

__all__ = ["preview"]

_MAX_PICTURES = 64
_LONGEST_SIDE = 224
_QUALITY = 80
_Key = tuple[bytes, int]


def preview(decoder: Decoder, items: Sequence[MediaItem]) -> dict[bytes, tuple[bytes, ...]]:
    """JPEGs of at most 224 pixels a side for the frames of `items`, by digest.

    After the first 64 pictures there are no more: an item whose frames are not all among them
    is left out. Blocks. Raises MediaRefused, naming the item's media part.

    Pure. Cost: decoding; holds one picture's pixels at a time.
    """
    wanted: dict[_Key, tuple[MediaItem, Source]] = {}
    shown: list[MediaItem] = []
    for item in items:
        new = {_key(source): (item, source) for source in item.origin.sources}
        if not new or len(wanted | new) > _MAX_PICTURES:
            continue
        wanted |= new
        shown.append(item)
    pictures = _pictures(decoder, wanted)
    return {
        item.digest: tuple(pictures[_key(source)] for source in item.origin.sources)
        for item in shown
        if all(_key(source) in pictures for source in item.origin.sources)
    }


def _pictures(
    decoder: Decoder, wanted: dict[_Key, tuple[MediaItem, Source]]
) -> dict[_Key, bytes]:
    found: dict[_Key, bytes] = {}
    clips: dict[bytes, list[ClipFrame]] = {}
    owners: dict[bytes, MediaItem] = {}
    for key, (item, source) in wanted.items():
        if isinstance(source, ClipFrame):
            clips.setdefault(source.digest, []).append(source)
            owners[source.digest] = item
            continue
        try:
            found[key] = _picture(decoder, source)
        except MmserveError as error:
            raise named(error, item.kind, item.origin.index) from None
    for digest, frames in clips.items():
        try:
            found |= _frames(decoder, frames)
        except MmserveError as error:
            raise named(error, owners[digest].kind, owners[digest].origin.index) from None
    return found


def _picture(decoder: Decoder, source: PictureFile) -> bytes:
    return _jpeg(decoder.picture(source.content, source.header))


def _frames(decoder: Decoder, sources: Sequence[ClipFrame]) -> dict[_Key, bytes]:
    """Frames of one clip, in one pass over it."""
    first, wishes = sources[0], Wishes(_numbers(sources))
    found: dict[_Key, bytes] = {}
    with closing(decoder.frames(first.content, first.clip, wishes)) as frames:
        for number, pixels in frames:
            wishes.remove(number)
            found[first.digest, number] = _jpeg(pixels)
    return found


def _numbers(sources: Iterable[ClipFrame]) -> Iterable[int]:
    return (source.number for source in sources)


def _key(source: Source) -> _Key:
    return source.digest, source.number if isinstance(source, ClipFrame) else -1


def _jpeg(pixels: NDArray[np.uint8]) -> bytes:
    picture = Image.fromarray(pixels)
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
