"""Which decoder serves: children, or the threads that ask."""

from __future__ import annotations

import logging
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mmserve.core import MediaConfig
from mmserve.vision.children.isolated import InChildren
from mmserve.vision.children.pool import shared_children
from mmserve.vision.children.port import Decoder, Frames
from mmserve.vision.children.process import can_start
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.frames import decode_frames
from mmserve.vision.header import PictureHeader
from mmserve.vision.image import decode_picture
from mmserve.vision.probe import library_header
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes

__all__ = ["InThreads", "new_decoder"]

_LOG = logging.getLogger(__name__)


def new_decoder(config: MediaConfig) -> Decoder:
    """The decoder that `config.isolation` asks for; threads, and a warning, if it cannot be."""
    if config.isolation == "process" and can_start():
        return InChildren(config, shared_children())
    if config.isolation == "process":
        _warn_once()
    return InThreads(config)


class InThreads:
    """Decodes where it is asked: a file that crashes a decoder crashes the process."""

    def __init__(self, config: MediaConfig) -> None:
        self._config = config

    def warm(self) -> None:
        """Nothing needs to start."""

    def header(self, content: bytes, name: str) -> PictureHeader:
        """As `Decoder.header`. Pure."""
        return library_header(content, name)

    def picture(self, content: bytes, header: PictureHeader) -> NDArray[np.uint8]:
        """As `Decoder.picture`. Pure."""
        return decode_picture(content, header)

    def clip(self, content: bytes) -> ClipHeader:
        """As `Decoder.clip`. Pure."""
        return probe_clip(content, self._config)

    def frames(self, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """As `Decoder.frames`."""
        return decode_frames(content, clip, wishes.next_from)


@cache
def _warn_once() -> None:
    _LOG.warning(
        "this platform cannot hand files to child processes: media are decoded in threads of "
        "this process (isolation='thread'), where a bad file can do harm"
    )
