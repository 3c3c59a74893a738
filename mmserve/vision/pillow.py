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

from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    ImageFile,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    WebPImagePlugin,
)

from mmserve.vision.refusal import refused
from mmserve.vision.walks import png_chunks

__all__ = ["guarded", "opened"]

_PLUGINS: dict[str, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "JPEG": JpegImagePlugin.JpegImageFile,
    "PNG": PngImagePlugin.PngImageFile,
    "GIF": GifImagePlugin.GifImageFile,
    "WebP": WebPImagePlugin.WebPImageFile,
    "BMP": BmpImagePlugin.BmpImageFile,
    "TIFF": TiffImagePlugin.TiffImageFile,
    "AVIF": AvifImagePlugin.AvifImageFile,
}
_ANIMATION = frozenset({b"acTL", b"fcTL", b"fdAT"})
_tiff_lock = threading.Lock()


def opened(content: bytes, name: str) -> ImageFile.ImageFile:
    """The picture, header read, pixels not yet decoded. Call inside `guarded`.

    An animated PNG is opened without its animation: its default picture.
    """
    if name == "PNG":
        content = _without_animation(content)
    return _PLUGINS[name](io.BytesIO(content))


@contextmanager
def guarded(name: str) -> Iterator[None]:
    """Turn whatever a decoder raises on hostile bytes into MediaRefused, without warnings."""
    with _quiet() if name == "TIFF" else nullcontext():
        try:
            yield
        except Exception as error:  # noqa: BLE001 - hostile bytes raise anything
            message = f"cannot be decoded: the {name} file is cut short or damaged"
            raise refused("undecodable", message, decoder=type(error).__name__) from None


@contextmanager
def _quiet() -> Iterator[None]:
    with _tiff_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _without_animation(content: bytes) -> bytes:
    pieces = list(png_chunks(content))
    if all(kind not in _ANIMATION for kind, _, _ in pieces):
        return content
    kept = (content[start:end] for kind, start, end in pieces if kind not in _ANIMATION)
    return content[:8] + b"".join(kept)
