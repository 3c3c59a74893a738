"""From a decoded frame to upright RGB pixels over white."""

from __future__ import annotations

import av
import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.turning import turned
from mmserve.vision.refusal import refused

__all__ = ["rgb"]

_UNKNOWN = 2  # "unspecified" in every table of colour facts
_THREADS = 1  # of the conversion; starting more costs more than they gain, below 720p


def rgb(frame: VideoFrame, clip: ClipHeader) -> NDArray[np.uint8]:
    """uint8 [height, width, 3] of a frame of `clip`, in the size that its header says.

    Colour facts that make no sense for the frame's layout are ignored. Raises MediaRefused:
    `unsupported` if its layout cannot be converted.
    """
    width, height = (clip.height, clip.width) if "t" in clip.turn else (clip.width, clip.height)
    has_alpha = any(part.is_alpha for part in frame.format.components)
    layout = "rgba" if has_alpha else "rgb24"
    pixels = _converted(frame, layout, width, height)
    if has_alpha:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return turned(pixels, clip.turn)


def _converted(frame: VideoFrame, layout: str, width: int, height: int) -> NDArray[np.uint8]:
    try:
        return _array(frame, layout, width, height)
    except av.FFmpegError:
        frame.colorspace = frame.color_trc = frame.color_primaries = _UNKNOWN
    try:
        return _array(frame, layout, width, height)
    except av.FFmpegError:
        name = frame.format.name
        message = f"has frames in a layout that cannot be converted: {name}"
        raise refused("unsupported", message, layout=name) from None


def _array(frame: VideoFrame, layout: str, width: int, height: int) -> NDArray[np.uint8]:
    shown = frame.to_ndarray(format=layout, width=width, height=height, threads=_THREADS)
    return shown.astype(np.uint8, copy=False)
