"""Clips as pictures, for APIs that take no clips: sampled here, by the language's own rules.

clip, num_frames=3   |f0 f1 f2 f3 f4|   ->   P(f0) P(f2) P(f4)
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from mmserve.core import (
    BytesSource,
    FramesSource,
    ImagePart,
    MediaConfig,
    MediaRefused,
    MediaSource,
    UrlSource,
    VideoPart,
)

__all__ = ["frame_pictures"]

_MOST_CLIPS = 16
_CONFIG = MediaConfig()


def frame_pictures(part: VideoPart) -> tuple[ImagePart, ...]:
    """The sampled frames of a clip in order, each within the clip's bounds.

    Raises MediaRefused for what is no clip, and BadRequest for values without meaning. Cost:
    one decoding up to the last frame taken; the last clips are remembered.
    """
    return tuple(ImagePart(frame, part.max_pixels, part.min_pixels) for frame in _sampled(part))


@lru_cache(maxsize=_MOST_CLIPS)
def _sampled(part: VideoPart) -> tuple[BytesSource, ...]:
    if isinstance(part.source, FramesSource):
        return _given(part, part.source)
    return _decoded(part, _content(part.source))


def _given(part: VideoPart, source: FramesSource) -> tuple[BytesSource, ...]:
    from mmserve.vision.sampling import FrameTimes, choose_frames, exact_fps  # noqa: PLC0415  slow to import

    count = len(source.frames)
    if part.num_frames is None and part.fps is None and part.times_s is None:
        part = replace(part, num_frames=count)
    times = FrameTimes(range(count), 1 / exact_fps(source.fps), count)
    return tuple(source.frames[number] for number in choose_frames(times, part, _CONFIG))


def _decoded(part: VideoPart, content: bytes) -> tuple[BytesSource, ...]:
    from mmserve.lang.png import encode_png  # noqa: PLC0415  keeps numpy out of the room's start
    from mmserve.vision.frames import decode_frames  # noqa: PLC0415  slow to import
    from mmserve.vision.header import is_still  # noqa: PLC0415  slow to import
    from mmserve.vision.sampling import FrameTimes, choose_frames  # noqa: PLC0415  slow to import
    from mmserve.vision.video import probe_clip  # noqa: PLC0415  slow to import

    if is_still(content):
        choose_frames(FrameTimes((0,), Fraction(1), 1), part, _CONFIG)
        return (BytesSource(content),)
    clip = probe_clip(content, _CONFIG)
    wanted = choose_frames(clip.times, part, _CONFIG, clip.key_frames)

    def next_wanted(position: int) -> int | None:
        return next((number for number in wanted if number >= position), None)

    return tuple(
        BytesSource(encode_png(pixels))
        for _, pixels in decode_frames(content, clip, next_wanted)
    )


def _content(source: MediaSource) -> bytes:
    from mmserve.vision import Fetcher  # noqa: PLC0415  slow to import
    from mmserve.vision.sources import read_data_url  # noqa: PLC0415  slow to import

    if isinstance(source, BytesSource):
        return source.content
    if isinstance(source, UrlSource):
        if source.url[:5].lower() == "data:":
            return read_data_url(source.url, _CONFIG.max_media_bytes)
        if source.url[:5].lower() in ("http:", "https"):
            return Fetcher(_CONFIG).fetch(source.url)
    message = "a clip is given by a name that only a server of ours knows"
    raise MediaRefused(message, reason="unsupported", hint="give a path, URL or bytes")
