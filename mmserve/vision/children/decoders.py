"""Decoding behind one port: in children, or in the threads that ask."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from dataclasses import replace
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmserve.core import MediaConfig
from mmserve.vision.children.pool import Children, shared_children
from mmserve.vision.children.process import Limits, can_start
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.frames import decode_frames
from mmserve.vision.header import PictureHeader
from mmserve.vision.image import decode_picture
from mmserve.vision.probe import library_header, most_pixels
from mmserve.vision.refusal import refused
from mmserve.vision.video import probe_clip
from mmserve.vision.wishes import Wishes

__all__ = ["Decoder", "Frames", "InChildren", "InThreads", "new_decoder"]

_LOG = logging.getLogger(__name__)
_SPARE_BYTES = 256 << 20  # threads' stacks, tables, and what a library needs for any picture
_BYTES_PER_PIXEL = 24  # the hungriest format: planes, alpha, copies of 4 bytes, the result

Frames = Generator[tuple[int, NDArray[np.uint8]], None, None]


class Decoder(Protocol):
    """What touches the content of files beyond the walks of `walks`. Safe from any thread.

    All raise MediaRefused for files that are bad or need more than they may take.
    """

    def warm(self) -> None:
        """Something is going to be decoded. Returns at once."""

    def header(self, content: bytes, name: str) -> PictureHeader:
        """Header of a picture in a format that needs a library; sides as stored."""

    def picture(self, content: bytes, header: PictureHeader) -> NDArray[np.uint8]:
        """Pixels of a picture: uint8 [height, width, 3], RGB, upright."""

    def clip(self, content: bytes) -> ClipHeader:
        """Header of a clip."""

    def frames(self, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """Wanted frames in one pass, as `decode_frames`; wishes may join while it runs.

        Whoever gets a frame removes its number from `wishes`.
        """


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


class InChildren:
    """Decodes in processes that a bad file can only take down alone.

    Looks at headers take at most `config.workers` children at a time; how many are decoding is
    up to who asks.
    """

    def __init__(self, config: MediaConfig, children: Children) -> None:
        self._config = replace(config, max_pixels=most_pixels(config))
        self._children = children
        self._looks = threading.BoundedSemaphore(config.workers)
        children.expect(2 * config.workers)

    def warm(self) -> None:
        """Start a child if there is none."""
        self._children.warm()

    def header(self, content: bytes, name: str) -> PictureHeader:
        """As `Decoder.header`."""
        with self._looks:
            header = self._asked("header", content, self._limits(0), name=name)["header"]
        if not isinstance(header, PictureHeader):
            raise _nonsense()
        return header

    def picture(self, content: bytes, header: PictureHeader) -> NDArray[np.uint8]:
        """As `Decoder.picture`."""
        limits = self._limits(header.width * header.height)
        with self._children.lent() as child:
            child.give("picture", content, limits, {"header": header})
            answer = child.listen()
            shape = (header.height, header.width, 3)
            if answer.get("shape") != list(shape):
                child.is_sound = False
                raise _nonsense()
            return child.pixels(shape)

    def clip(self, content: bytes) -> ClipHeader:
        """As `Decoder.clip`."""
        limits = self._limits(None)
        with self._looks:
            header = self._asked("clip", content, limits, config=self._config)["header"]
        if not isinstance(header, ClipHeader):
            raise _nonsense()
        return header

    def frames(self, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """As `Decoder.frames`; the child is a frame or two ahead of who takes them."""
        limits = replace(self._limits(None), total_s=self._config.clip_timeout_s)
        told = set(wishes.all_from(0))
        with self._children.lent() as child:
            wishes.listen(child.wake)
            try:
                job = {"clip": clip, "numbers": sorted(told)}
                child.give("frames", content, limits, job)
                while "is_done" not in (answer := child.listen(can_wake=True)):
                    if "frame" in answer:
                        pixels = child.pixels((clip.height, clip.width, 3), answer["offset"])
                        child.tell({"took": 1})
                        told.discard(answer["frame"])
                        yield answer["frame"], pixels
                        continue
                    new = set(wishes.all_from(answer.get("idle", 0))) - told
                    told |= new
                    reply = {"is_answer": True} if "idle" in answer else {}
                    child.tell({"numbers": sorted(new), **reply})
            finally:
                wishes.listen(None)

    def _asked(self, job: str, content: bytes, limits: Limits, **values: Any) -> dict[str, Any]:  # noqa: ANN401
        with self._children.lent() as child:
            child.give(job, content, limits, values)
            return child.listen()

    def _limits(self, num_pixels: int | None) -> Limits:
        """Of a job about so many pixels, or about a number that is not known."""
        config = self._config
        most = config.decode_memory_bytes
        if num_pixels is not None:
            most = min(most, _SPARE_BYTES + _BYTES_PER_PIXEL * num_pixels)
        return Limits(most, config.decode_timeout_s, config.decode_timeout_s)


def _nonsense() -> Exception:
    return refused("undecodable", "cannot be decoded: the decoder gave something else")


@cache
def _warn_once() -> None:
    _LOG.warning(
        "this platform cannot hand files to child processes: media are decoded in threads of "
        "this process (isolation='thread'), where a bad file can do harm"
    )
