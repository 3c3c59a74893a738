"""From a decoded frame to upright RGB pixels over white."""

from __future__ import annotations

import numpy as np
from av.video.frame import VideoFrame
from numpy.typing import NDArray

from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.clips.turning import turned

__all__ = ["rgb"]

_THREADS = 1  # of the conversion; starting more costs more than they gain, below 720p


def rgb(frame: VideoFrame, clip: ClipHeader) -> NDArray[np.uint8]:
    """uint8 [height, width, 3] of a frame of `clip`, in the size that its header says. Pure."""
    width, height = (clip.height, clip.width) if "t" in clip.turn else (clip.width, clip.height)
    has_alpha = any(part.is_alpha for part in frame.format.components)
    layout = "rgba" if has_alpha else "rgb24"
    shown = frame.to_ndarray(format=layout, width=width, height=height, threads=_THREADS)
    pixels = shown.astype(np.uint8, copy=False)
    if has_alpha:
        alpha = pixels[..., 3:].astype(np.uint16)
        pixels = ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)
    return turned(pixels, clip.turn)
