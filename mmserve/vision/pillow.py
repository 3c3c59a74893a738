"""The one place that hands bytes to Pillow: the plugin is chosen by sniffing, never guessed.

Calling a plugin directly keeps Pillow's other decoders out of reach and its size warnings
silent; sizes are judged by `probe`. Only TIFF still warns about odd tags, so it is opened under
a lock that silences it (Python's warning filters belong to the whole process).
"""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from mmserve.core import MediaRefused
from mmserve.vision.refusal import refused
from mmserve.vision.walks import png_chunks

__all__ = ["guarded", "has_heif", "opened"]

_NEEDED_BY_PIXELS = frozenset({b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"})
_STEPS = {"L;2": 85, "L;4": 17}
_tiff_lock = threading.Lock()


def has_heif() -> bool:
    """Whether the extra that reads HEIC is installed. Pure."""
    return find_spec("pillow_heif") is not None


def opened(content: bytes, name: str) -> ImageFile.ImageFile:
    """The picture, header read, pixels not yet decoded. Call inside `guarded`."""
    return _OPENERS[name](io.BytesIO(content))


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Turn whatever a decoder raises on hostile bytes into MediaRefused, without warnings.

    MemoryError passes: it tells of a limit, not of the file.
    """
    with _quiet() if name == "TIFF" else nullcontext():
        try:
            yield
        except (MediaRefused, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - hostile bytes raise anything
            message = f"cannot be decoded: the {name} file is cut short or damaged"
            raise refused("undecodable", message, decoder=type(error).__name__) from None


@contextmanager
def _quiet() -> Iterator[None]:
    with _tiff_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _png(file: io.BytesIO) -> ImageFile.ImageFile:
    """A PNG of the chunks that its pixels need: no text, no profile, no animation.

    Pillow compares a transparent sample as the file has it with samples brought to 8 bits; it
    is brought to 8 bits too.
    """
    picture = PngImagePlugin.PngImageFile(io.BytesIO(_pixels_only(file.getvalue())))
    key = picture.info.get("transparency")
    layout = picture.tile[0].args if picture.tile else None
    if isinstance(key, int) and layout in _STEPS:
        picture.info["transparency"] = key * _STEPS[layout]
    if isinstance(key, tuple) and layout == "RGB;16B":
        picture.info["transparency"] = tuple(sample >> 8 for sample in key)
    return picture


def _pixels_only(content: bytes) -> bytes:
    pieces = list(png_chunks(content))
    if all(kind in _NEEDED_BY_PIXELS for kind, _, _ in pieces):
        return content
    kept = (content[start:end] for kind, start, end in pieces if kind in _NEEDED_BY_PIXELS)
    return content[:8] + b"".join(kept)


def _heic(file: io.BytesIO) -> ImageFile.ImageFile:
    from pillow_heif import HeifImageFile  # noqa: PLC0415  an extra

    return HeifImageFile(file)  # type: ignore[no-untyped-call]


_OPENERS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": _png,
    "GIF": GifImagePlugin.GifImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "Netpbm": PpmImagePlugin.PpmImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
    "HEIC": _heic,
}
