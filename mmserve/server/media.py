"""Pictures and clips as clients name them: addresses, base64, and frames in a row."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    MediaSource,
    UrlSource,
    VideoPart,
)
from mmserve.server.fields import Body, integer, list_of, number, text, wrong
from mmserve.server.frames import split_frames

__all__ = ["MediaDefaults", "address", "clip_item", "decode_base64", "picture_item"]

_SCHEMES = ("http://", "https://", "data:", "file://")
_FRAMES_PREFIX = "video:"
_PIXELS = integer(1, 2**40)
_FRAMES = integer(1, 1_000_000)
_RATE = number(1e-6, 1e6)
_SECONDS = number(0.0, 1e9)


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaDefaults:
    """What a request says of all its media at once; an item's own values come first."""

    num_frames: int | None = None
    fps: float | None = None
    max_pixels: int | None = None
    min_pixels: int | None = None

    @classmethod
    def take(cls, body: Body) -> MediaDefaults:
        """Read the four fields from a body. Changes: the fields count as known."""
        return cls(
            num_frames=body.take("num_frames", _FRAMES, None),
            fps=body.take("fps", _RATE, None),
            max_pixels=body.take("max_pixels", _PIXELS, None),
            min_pixels=body.take("min_pixels", _PIXELS, None),
        )

    def picture(self, source: MediaSource) -> ImagePart:
        """A picture under these values. Pure."""
        return ImagePart(source, self.max_pixels, self.min_pixels)

    def clip(
        self, source: MediaSource, start_s: float | None = None, end_s: float | None = None
    ) -> VideoPart:
        """A clip under these values. Pure."""
        return VideoPart(
            source,
            self.num_frames,
            self.fps,
            start_s,
            end_s,
            self.max_pixels,
            self.min_pixels,
        )

    def over(self, other: MediaDefaults) -> MediaDefaults:
        """These values, and `other`'s where these say nothing. Pure."""
        return MediaDefaults(
            num_frames=other.num_frames if self.num_frames is None else self.num_frames,
            fps=other.fps if self.fps is None else self.fps,
            max_pixels=other.max_pixels if self.max_pixels is None else self.max_pixels,
            min_pixels=other.min_pixels if self.min_pixels is None else self.min_pixels,
        )


def address(value: object, name: str) -> UrlSource:
    """An address that may be fetched: http, https, data, or file. Pure.

    Whether the address is allowed, and a file permitted, is for the media guards to say.
    """
    url = text(value, name)
    if not url[:8].lower().startswith(_SCHEMES):
        message = f"{name} is not an address of a picture or clip"
        hint = "allowed are http://, https://, data: and file:// addresses"
        raise BadRequest(message, field=name, reason="scheme", hint=hint)
    return UrlSource(url)


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
        return defaults.picture(_source(value, name))
    body = Body(value, name)
    source = body.need("url", _source)
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
        return defaults.clip(_clip_source(value, name))
    body = Body(value, name)
    frames = body.take("frames", list_of(_frame), None)
    own = MediaDefaults.take(body)
    start_s = body.take("start_s", _SECONDS, None)
    end_s = body.take("end_s", _SECONDS, None)
    if start_s is not None and end_s is not None and end_s <= start_s:
        raise wrong(body.name("end_s"), end_s, f"more than start_s {start_s:g}")
    if frames is None:
        part = own.over(defaults).clip(body.need("url", _clip_source), start_s, end_s)
        body.finish()
        return part
    body.neutral("url")
    body.finish()
    if not frames:
        raise wrong(body.name("frames"), [], "a list of at least one picture")
    rate = 1.0 if own.fps is None else own.fps
    sized = MediaDefaults(
        num_frames=own.num_frames, max_pixels=own.max_pixels, min_pixels=own.min_pixels
    )
    return sized.clip(FramesSource(frames, rate), start_s, end_s)


def _source(value: object, name: str) -> UrlSource | BytesSource:
    words = text(value, name)
    if ":" in words[:8]:
        return address(words, name)
    return BytesSource(decode_base64(words, name))


def _clip_source(value: object, name: str) -> MediaSource:
    words = text(value, name)
    if words.startswith(_FRAMES_PREFIX):
        content = decode_base64(words[len(_FRAMES_PREFIX) :], name)
        return FramesSource(tuple(BytesSource(frame) for frame in split_frames(content, name)))
    return _source(words, name)


def _frame(value: object, name: str) -> BytesSource:
    words = text(value, name)
    if words[:5].lower() == "data:":
        _, comma, words = words.partition(",")
        if not comma:
            raise BadRequest(f"{name} is not a data address", field=name, reason="base64")
    return BytesSource(decode_base64(words, name))
