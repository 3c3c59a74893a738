"""From what a program names as a picture or clip to a `core` source; content is read here.

path, file object, bytes -> BytesSource        http(s):, data:, file-<id> -> UrlSource
PIL picture, array       -> BytesSource (PNG)  list, array [T,H,W,3]      -> FramesSource
"""

from __future__ import annotations

import base64
import binascii
import io
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from mmserve.core import BytesSource, FramesSource, MediaRefused, MediaSource, UrlSource

__all__ = ["image_source", "media_type", "video_source"]

_loading = threading.Lock()
"""Rows may share a PIL picture, which reads its file at its first use and not safely."""

_ADDRESS = re.compile(r"(https?|data|file):", re.IGNORECASE)
_FILE_ID = re.compile(r"file-[0-9A-Za-z_-]+")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
_SIGNATURES = (
    (b"\x89PNG", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
    (b"\x1aE\xdf\xa3", "video/webm"),
)


def image_source(value: object) -> BytesSource | UrlSource:
    """The source of one picture.

    Raises MediaRefused if the content cannot be read or is of no known kind. Reads files;
    arrays and PIL pictures cost one PNG encoding.
    """
    source = _simple_source(value)
    if source is not None:
        return source
    if _is_array(value):
        return BytesSource(_array_png(value))
    message = f"a picture cannot be made of {type(value).__name__}"
    raise MediaRefused(
        message,
        reason="unsupported",
        hint="give a path, URL, bytes, file object, PIL picture or array",
    )


def video_source(value: object, fps: float | None) -> tuple[MediaSource, float | None]:
    """The source of one clip, and the sampling rate to ask for.

    For a list or an array `fps` is the clip's own rate (1 when None), so no rate is left to ask
    for. Raises MediaRefused as `image_source`.
    """
    if _is_array(value):
        frames: list[object] = list(_clip_array(value))
    elif isinstance(value, (list, tuple)):
        frames = list(value)
    else:
        source = _simple_source(value)
        if source is None:
            message = f"a clip cannot be made of {type(value).__name__}"
            raise MediaRefused(message, reason="unsupported")
        return source, fps
    if not frames:
        message = "a clip has no frames"
        raise MediaRefused(message, reason="unsupported")
    return FramesSource(tuple(_frame(frame) for frame in frames), fps or 1.0), None


def media_type(content: bytes) -> str:
    """The MIME type that the first bytes of a file show. Pure."""
    for signature, name in _SIGNATURES:
        if content.startswith(signature):
            return name
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    if content[4:8] == b"ftyp":
        return "image/avif" if content[8:12] == b"avif" else "video/mp4"
    return "application/octet-stream"


def _simple_source(value: Any) -> BytesSource | UrlSource | None:  # noqa: ANN401  anything
    source: BytesSource | UrlSource | None = None
    if isinstance(value, str):
        source = _named(value)
    elif isinstance(value, os.PathLike):
        source = _read_file(Path(value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        source = _filled(bytes(value), "the given bytes")
    elif hasattr(value, "save") and hasattr(value, "mode"):
        source = BytesSource(_picture_png(value))
    elif hasattr(value, "read"):
        source = _read_object(value)
    return source


def _named(text: str) -> BytesSource | UrlSource:
    if _ADDRESS.match(text):
        return UrlSource(text)
    if _FILE_ID.fullmatch(text) and not Path(text).exists():
        return UrlSource(text)
    return _read_file(Path(text))


def _read_file(path: Path) -> BytesSource:
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a path"
        message = f"cannot read {str(path)[:200]!r}: {reason}"
        raise MediaRefused(message, reason="fetch_failed") from error
    return _filled(content, f"{str(path)[:200]!r}")


def _read_object(value: Any) -> BytesSource:  # noqa: ANN401  any object with a read method
    try:
        content = value.read()
    except (OSError, ValueError) as error:
        message = f"cannot read the file object: {error}"
        raise MediaRefused(message, reason="fetch_failed") from error
    if not isinstance(content, bytes):
        message = "a file object gave text, not bytes"
        raise MediaRefused(message, reason="unsupported", hint='open it with mode "rb"')
    return _filled(content, "the file object")


def _filled(content: bytes, what: str) -> BytesSource:
    if not content:
        message = f"{what} is empty"
        raise MediaRefused(message, reason="undecodable")
    return BytesSource(content)


def _picture_png(picture: Any) -> bytes:  # noqa: ANN401  PIL is not imported in this room
    buffer = io.BytesIO()
    options = {}
    with _loading:
        getattr(picture, "load", lambda: None)()
    if hasattr(picture, "getexif") and len(picture.getexif()):
        options["exif"] = picture.getexif()  # keeps the camera's orientation
    if picture.mode not in _PNG_MODES:
        picture = picture.convert("RGB")
    picture.save(buffer, format="PNG", compress_level=1, **options)
    return buffer.getvalue()


def _is_array(value: object) -> bool:
    return hasattr(value, "__array_interface__") and hasattr(value, "dtype")


def _array_png(array: Any) -> bytes:  # noqa: ANN401  numpy is imported only when an array comes
    from mmserve.lang.png import encode_png  # noqa: PLC0415  keeps numpy out of the room's start

    shape = tuple(array.shape)
    is_grey = len(shape) == 2
    is_colour = len(shape) == 3 and shape[2] in (3, 4)
    if not (is_grey or is_colour) or 0 in shape:
        message = f"an array of shape {shape} is no picture"
        hint = "use [H, W], [H, W, 3] or [H, W, 4]"
        raise MediaRefused(message, reason="unsupported", hint=hint)
    return encode_png(_bytes_of(array))


def _bytes_of(array: Any) -> Any:  # noqa: ANN401  numpy is imported only when an array comes
    import numpy as np  # noqa: PLC0415  keeps numpy out of the room's start

    if array.dtype == np.uint8:
        return array
    if array.dtype.kind != "f":
        message = f"an array of {array.dtype} is no picture"
        raise MediaRefused(message, reason="unsupported", hint="use uint8, or float in [0, 1]")
    if not bool(np.all((array >= 0) & (array <= 1))):
        message = "a float array has values outside [0, 1]"
        raise MediaRefused(message, reason="unsupported", hint="divide by 255, or use uint8")
    return np.rint(array * 255).astype(np.uint8)


def _clip_array(array: Any) -> Sequence[Any]:  # noqa: ANN401  numpy is imported only when an array comes
    if len(array.shape) != 4 or array.shape[3] != 3:
        message = f"an array of shape {tuple(array.shape)} is no clip"
        raise MediaRefused(message, reason="unsupported", hint="use [T, H, W, 3]")
    return [array[index] for index in range(array.shape[0])]


def _frame(value: object) -> BytesSource:
    source = image_source(value)
    if isinstance(source, BytesSource):
        return source
    return _data_url(source.url)


def _data_url(url: str) -> BytesSource:
    if not url.lower().startswith("data:") or "," not in url:
        message = "a frame of a clip is given by address"
        raise MediaRefused(message, reason="unsupported", hint="fetch it first")
    head, body = url.split(",", 1)
    try:
        content = (
            base64.b64decode(body, validate=True)
            if head.endswith(";base64")
            else unquote_to_bytes(body)
        )
    except binascii.Error as error:
        message = f"a data URL is not base64: {error}"
        raise MediaRefused(message, reason="undecodable") from error
    return _filled(content, "a data URL")
