"""Pictures and clips as clients name them: addresses, files, base64, and frames in a row.

    "https://..", "data:.."     UrlSource      the media plane reads it, behind its guards
    "file-" + 32 hex digits     BytesSource    an uploaded file, looked up here and now
    base64                      BytesSource
    "video:" + base64           FramesSource

A file is looked up when the request is read, so that it may leave the store afterwards.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass, replace

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    MediaSource,
    NotFound,
    UrlSource,
    VideoPart,
)
from mmserve.server.fields import (
    Body,
    boolean,
    integer,
    list_of,
    number,
    shown,
    text,
    word,
    wrong,
)
from mmserve.server.frames import split_frames

__all__ = [
    "FindFile",
    "MediaDefaults",
    "address",
    "clip_item",
    "decode_base64",
    "no_file",
    "picture_item",
    "source_item",
]

FindFile = Callable[[str, str], BytesSource]
"""Takes a file's id and the field that names it; gives its content or raises NotFound."""

_SCHEMES = ("http://", "https://", "data:", "file://")
_FRAMES_PREFIX = "video:"
_FILE_PREFIX = "file-"
_MAX_FILE_ID = 80  # longer words are base64 of the URL-safe alphabet
_PIXELS = integer(1, 2**40)
_FRAMES = integer(1, 1_000_000)
_RATE = number(1e-6, 1e6)
_SECONDS = number(0.0, 1e9)
_MAX_TIMES = 1024


def no_file(file_id: str, name: str) -> BytesSource:
    """Finds no file: for surfaces without a store. Raises NotFound."""
    message = f"there is no file {shown(file_id)}"
    hint = "upload it with POST /v1/files, which gives its id"
    raise NotFound(message, hint=hint, field=name, what="file", name=file_id[:_MAX_FILE_ID])


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Which moments of one clip are meant; see `VideoPart`."""

    start_s: float | None = None
    end_s: float | None = None
    times_s: tuple[float, ...] | None = None
    key_frames: bool = False

    @classmethod
    def take(cls, body: Body) -> Moments:
        """Read the fields from a clip's object. Changes: they count as known."""
        moments = cls(
            start_s=body.take("start_s", _SECONDS, None),
            end_s=body.take("end_s", _SECONDS, None),
            times_s=body.take("times_s", list_of(_SECONDS, most=_MAX_TIMES), None),
            key_frames=body.take("key_frames", boolean, default=False),
        )
        start_s, end_s = moments.start_s, moments.end_s
        if start_s is not None and end_s is not None and end_s <= start_s:
            raise wrong(body.name("end_s"), end_s, f"more than start_s {start_s:g}")
        return moments


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaDefaults:
    """What a request says of all its media at once; an item's own values come first.

    `find` finds the files that items name.
    """

    num_frames: int | None = None
    fps: float | None = None
    max_pixels: int | None = None
    min_pixels: int | None = None
    find: FindFile = no_file

    @classmethod
    def take(cls, body: Body, find: FindFile = no_file) -> MediaDefaults:
        """Read the four fields from a body. Changes: the fields count as known."""
        return cls(
            num_frames=body.take("num_frames", _FRAMES, None),
            fps=body.take("fps", _RATE, None),
            max_pixels=body.take("max_pixels", _PIXELS, None),
            min_pixels=body.take("min_pixels", _PIXELS, None),
            find=find,
        )

    def address(self, value: object, name: str) -> UrlSource | BytesSource:
        """What an address or a file's id names. Raises BadRequest or NotFound."""
        words = address(value, name)
        return self.find(words, name) if _is_file(words) else UrlSource(words)

    def picture(self, source: MediaSource) -> ImagePart:
        """A picture under these values. Pure."""
        return ImagePart(source, self.max_pixels, self.min_pixels)

    def clip(self, source: MediaSource, moments: Moments | None = None) -> VideoPart:
        """A clip under these values. Pure."""
        moments = moments or Moments()
        part = VideoPart(
            source,
            start_s=moments.start_s,
            end_s=moments.end_s,
            max_pixels=self.max_pixels,
            min_pixels=self.min_pixels,
            times_s=moments.times_s,
            key_frames=moments.key_frames,
        )
        if moments.times_s is not None:
            return part
        return replace(part, num_frames=self.num_frames, fps=self.fps)

    def over(self, other: MediaDefaults) -> MediaDefaults:
        """These values, `other`'s where these say nothing, and its files. Pure."""
        return MediaDefaults(
            num_frames=other.num_frames if self.num_frames is None else self.num_frames,
            fps=other.fps if self.fps is None else self.fps,
            max_pixels=other.max_pixels if self.max_pixels is None else self.max_pixels,
            min_pixels=other.min_pixels if self.min_pixels is None else self.min_pixels,
            find=other.find,
        )


def address(value: object, name: str) -> str:
    """An address that may be fetched: http, https, data, or file; or a file's id. Pure.

    Whether the address is allowed, and a file permitted, is for the media guards to say.
    """
    url = text(value, name)
    if not (_is_file(url) or url[:8].lower().startswith(_SCHEMES)):
        message = f"{name} is not an address of a picture or clip"
        hint = "allowed are http://, https://, data: and file:// addresses, and ids of files"
        raise BadRequest(message, field=name, reason="scheme", hint=hint)
    return url


def decode_base64(value: str, name: str) -> bytes:
    """Bytes of base64 text; padding may be missing, the URL-safe alphabet is read too. Pure."""
    plain = value.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        content = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        message = f"{name} is neither an address nor valid base64"
        raise BadRequest(message, field=name, reason="base64") from None
    if not content:
        raise BadRequest(f"{name} is empty", field=name, reason="empty")
    return content


def picture_item(
    value: object, name: str, defaults: MediaDefaults = MediaDefaults()
) -> ImagePart | VideoPart:
    """An item of `image_data`: text, or `{"url", "max_pixels", "min_pixels"}`. Pure.

    Text that begins with `video:` is a clip, as clients of the native format send it.
    """
    if isinstance(value, str):
        if value.startswith(_FRAMES_PREFIX):
            return clip_item(value, name, defaults)
        return defaults.picture(_source(value, name, defaults))
    body = Body(value, name)
    source = body.need("url", lambda item, where: _source(item, where, defaults))
    own = MediaDefaults(
        max_pixels=body.take("max_pixels", _PIXELS, None),
        min_pixels=body.take("min_pixels", _PIXELS, None),
    )
    body.finish()
    return own.over(defaults).picture(source)


def clip_item(value: object, name: str, defaults: MediaDefaults = MediaDefaults()) -> VideoPart:
    """An item of `video_data`: text, or an object with `url` or `frames`. Pure.

    With `frames` (pictures in time order), `fps` is their rate, 1 by default.
    """
    if isinstance(value, str):
        return defaults.clip(_clip_source(value, name, defaults))
    body = Body(value, name)
    frames = body.take("frames", list_of(lambda v, where: _frame(v, where, defaults)), None)
    own = MediaDefaults.take(body)
    moments = Moments.take(body)
    if moments.times_s is not None and own.num_frames is not None:
        others = "times_s alone, or num_frames and fps without it"
        raise wrong(body.name("num_frames"), own.num_frames, others)
    if frames is None:
        source = body.need("url", lambda item, where: _clip_source(item, where, defaults))
        body.finish()
        return own.over(defaults).clip(source, moments)
    body.neutral("url")
    body.finish()
    if not frames:
        raise wrong(body.name("frames"), [], "a list of at least one picture")
    rate = 1.0 if own.fps is None else own.fps
    sized = MediaDefaults(
        num_frames=own.num_frames, max_pixels=own.max_pixels, min_pixels=own.min_pixels
    )
    return sized.clip(FramesSource(frames, rate), moments)


def source_item(value: object, name: str, defaults: MediaDefaults) -> UrlSource | BytesSource:
    """A picture's `source` as Anthropic's API spells it: base64, an address, or a file. Pure.

    Raises BadRequest or NotFound.
    """
    body = Body(value, name)
    kind = body.need("type", word("base64", "url", "file"))
    source: UrlSource | BytesSource
    if kind == "url":
        source = body.need("url", defaults.address)
    elif kind == "file":
        source = body.need(
            "file_id", lambda item, where: defaults.find(text(item, where), where)
        )
    else:
        media_type = body.need("media_type", text)
        source = UrlSource(f"data:{media_type[:100]};base64,{body.need('data', text)}")
    body.finish()
    return source


def _source(value: object, name: str, defaults: MediaDefaults) -> UrlSource | BytesSource:
    words = text(value, name)
    if ":" in words[:8]:
        return defaults.address(words, name)
    return _content(words, name, defaults)


def _clip_source(value: object, name: str, defaults: MediaDefaults) -> MediaSource:
    words = text(value, name)
    if words.startswith(_FRAMES_PREFIX):
        row = _content(words[len(_FRAMES_PREFIX) :], name, defaults).content
        return FramesSource(tuple(BytesSource(frame) for frame in split_frames(row, name)))
    return _source(words, name, defaults)


def _frame(value: object, name: str, defaults: MediaDefaults) -> BytesSource:
    words = text(value, name)
    if words[:5].lower() == "data:":
        _, comma, words = words.partition(",")
        if not comma:
            raise BadRequest(f"{name} is not a data address", field=name, reason="base64")
        return BytesSource(decode_base64(words, name))
    return _content(words, name, defaults)


def _content(words: str, name: str, defaults: MediaDefaults) -> BytesSource:
    """A file's content, or what base64 says."""
    if _is_file(words):
        return defaults.find(words, name)
    return BytesSource(decode_base64(words, name))


def _is_file(words: str) -> bool:
    """Whether these words name a file, there or not, rather than being content."""
    return words.startswith(_FILE_PREFIX) and len(words) <= _MAX_FILE_ID
