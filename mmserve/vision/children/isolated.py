"""Decoding in children: jobs, their limits, and the benefit of the doubt.

A child that has served other files may have been harmed by one of them. So a file under which
such a child crashes is tried once more, in a child that has seen nothing else; only a crash
there is the file's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision.children.line import Message
from mmserve.vision.children.pool import Children
from mmserve.vision.children.port import Frames
from mmserve.vision.children.process import Child, Limits, nonsense
from mmserve.vision.clips.header import ClipHeader
from mmserve.vision.header import PictureHeader
from mmserve.vision.probe import most_pixels
from mmserve.vision.wishes import Wishes

__all__ = ["InChildren"]

_SPARE_BYTES = 256 << 20  # threads' stacks, tables, and what a library needs for any picture
_BYTES_PER_PIXEL = 24  # the hungriest format: planes, alpha, copies of 4 bytes, the result

_Result = TypeVar("_Result")


class InChildren:
    """Decodes in processes that a bad file can only take down alone.

    Looks at pictures' headers take at most `config.workers` children at a time, and looks at
    clips as many; how many are decoding is up to who asks.
    """

    def __init__(self, config: MediaConfig, children: Children) -> None:
        self._config = replace(config, max_pixels=most_pixels(config))
        self._children = children
        self._looks = threading.BoundedSemaphore(config.workers)
        self._clip_looks = threading.BoundedSemaphore(config.workers)
        children.expect(2 * config.workers)

    def warm(self) -> None:
        """Start a child if there is none."""
        self._children.warm()

    def header(self, content: bytes, name: str) -> PictureHeader:
        """As `Decoder.header`."""

        def look(child: Child) -> PictureHeader:
            child.give("header", content, self._limits(0), {"name": name})
            return _header_of(child, PictureHeader)

        with self._looks:
            return self._tried(look)

    def picture(self, content: bytes, header: PictureHeader) -> NDArray[np.uint8]:
        """As `Decoder.picture`."""
        limits = self._limits(header.width * header.height)
        shape = (header.height, header.width, 3)

        def decode(child: Child) -> NDArray[np.uint8]:
            child.give("picture", content, limits, {"header": header})
            if child.listen().get("shape") != list(shape):
                raise nonsense(child)
            return child.pixels(shape)

        return self._tried(decode)

    def clip(self, content: bytes) -> ClipHeader:
        """As `Decoder.clip`."""

        def look(child: Child) -> ClipHeader:
            child.give("clip", content, self._limits(None), {"config": self._config})
            return _header_of(child, ClipHeader)

        with self._clip_looks:
            return self._tried(look)

    def frames(self, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """As `Decoder.frames`; the child is a frame or two ahead of who takes them."""
        try:
            with self._children.lent() as child:
                yield from self._pass(child, content, clip, wishes)
        except MediaRefused as error:
            if not _is_doubtful(error):
                raise
        else:
            return
        with self._children.lent(is_fresh=True) as child:
            yield from self._pass(child, content, clip, wishes)

    def _pass(self, child: Child, content: bytes, clip: ClipHeader, wishes: Wishes) -> Frames:
        """One pass of one child; see `clips` for what is said."""
        limits = replace(self._limits(None), total_s=self._config.clip_timeout_s)
        shape = (clip.height, clip.width, 3)
        told = set(wishes.all_from(0))
        wishes.listen(child.wake)
        try:
            job = {"clip": clip, "numbers": sorted(told)}
            child.give("frames", content, limits, job)
            while "is_done" not in (answer := child.listen(can_wake=True)):
                if wishes.is_over:
                    child.is_sound = False  # in the middle of its job
                    return
                if "frame" in answer:
                    number, offset = _counts(child, answer, "frame", "offset")
                    if number not in told:
                        raise nonsense(child)
                    pixels = child.pixels(shape, offset)
                    child.tell({"took": 1})
                    told.discard(number)
                    yield number, pixels
                    continue
                (position,) = _counts(child, {"idle": 0, **answer}, "idle")
                new = set(wishes.all_from(position)) - told
                told |= new
                reply = {"is_answer": True} if "idle" in answer else {}
                child.tell({"numbers": sorted(new), **reply})
        finally:
            wishes.listen(None)

    def _tried(self, job: Callable[[Child], _Result]) -> _Result:
        """What `job` gets from a child, or from a fresh one if the first may be to blame."""
        try:
            with self._children.lent() as child:
                return job(child)
        except MediaRefused as error:
            if not _is_doubtful(error):
                raise
        with self._children.lent(is_fresh=True) as child:
            return job(child)

    def _limits(self, num_pixels: int | None) -> Limits:
        """Of a job about so many pixels, or about a number that is not known."""
        config = self._config
        most = config.decode_memory_bytes
        if num_pixels is not None:
            most = min(most, _SPARE_BYTES + _BYTES_PER_PIXEL * num_pixels)
        return Limits(most, config.decode_timeout_s, config.decode_timeout_s)


def _is_doubtful(error: MediaRefused) -> bool:
    """Whether a crash may come from what its child did before. Pure."""
    return bool(error.fields.get("num_jobs_before"))


def _header_of(child: Child, kind: type[_Result]) -> _Result:
    header = child.listen().get("header")
    if not isinstance(header, kind):
        raise nonsense(child)
    return header


def _counts(child: Child, answer: Message, *names: str) -> list[int]:
    """Numbers from 0 that an answer must hold."""
    counts: list[Any] = [answer.get(name) for name in names]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        raise nonsense(child)
    return counts
