"""Pixels on demand: a bounded pool that decodes each picture once for all who ask at a time.

request -> under way already?  yes: wait along
              no: picture -> one job
                  frame   -> the clip's pass, running or new; wishes join while it runs
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mmserve.core import Aborted, Broken, MmserveError
from mmserve.vision.frames import decode_frames
from mmserve.vision.image import decode_picture
from mmserve.vision.items import FrameOrigin, MediaItem, PictureOrigin
from mmserve.vision.refusal import MediaKind, named

__all__ = ["OnReady", "PixelPool", "Processor"]

_LOG = logging.getLogger(__name__)

Inputs = dict[str, NDArray[Any]]
OnReady = Callable[[bytes, Inputs | None, MmserveError | None, float, float], None]
"""(digest, inputs or None, error or None, decode milliseconds, preprocess milliseconds)."""


class Processor(Protocol):
    """What the media plane asks of a family's picture processor."""

    @property
    def fingerprint(self) -> bytes:
        """16 bytes over every setting that the result depends on."""
        ...

    def num_patches(self, width: int, height: int) -> int:
        """Patches of a picture of this size. Pure."""
        ...

    def num_tokens(self, width: int, height: int) -> int:
        """Tokens of a picture of this size. Pure."""
        ...

    def check_bounds(self, max_pixels: int | None, min_pixels: int | None) -> None:
        """Raise BadRequest if a request's bounds cannot be kept. Pure."""
        ...

    def __call__(self, pixels: NDArray[np.uint8]) -> Inputs:
        """The tower's inputs for uint8 [H, W, 3]. Pure."""
        ...


@dataclass(slots=True, eq=False)
class _ClipQueue:
    """Frames of one clip that are wanted: sorted numbers, and who each stands for."""

    origin: FrameOrigin
    numbers: list[int] = field(default_factory=list)
    digests: dict[int, list[bytes]] = field(default_factory=dict)

    def add(self, number: int, digest: bytes) -> None:
        if number not in self.digests:
            insort(self.numbers, number)
        self.digests.setdefault(number, []).append(digest)

    def take(self, number: int) -> list[bytes]:
        self.numbers.remove(number)
        return self.digests.pop(number)


class PixelPool:
    """Decodes and preprocesses in `num_workers` threads; owns nothing beyond what is under way.

    Args:
        processor: makes the model's inputs.
        num_workers: most pictures or clips decoded at once.
    """

    def __init__(self, processor: Processor, num_workers: int) -> None:
        self._processor = processor
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="mmserve-decode")
        self._lock = threading.Lock()
        self._waiting: dict[bytes, list[tuple[OnReady, MediaKind, int]]] = {}
        self._clips: dict[bytes, _ClipQueue] = {}
        self._is_closed = False
        self.num_pictures = 0
        self.num_clip_passes = 0
        self.num_preprocesses = 0

    def request(self, items: Sequence[MediaItem], on_ready: OnReady) -> None:
        """Ask for the inputs of `items`; returns at once.

        `on_ready` is called exactly once for each different digest, from a thread of the pool,
        also for those already under way. Frames of one clip are decoded in one pass over it.
        Inputs are shared between all who asked, and read-only.
        """
        pictures: list[MediaItem] = []
        clips: list[bytes] = []
        with self._lock:
            if self._is_closed:
                raise Aborted("the media plane is closed")
            for item in {item.digest: item for item in items}.values():
                waiter = (on_ready, item.kind, item.origin.index)
                waiting = self._waiting.setdefault(item.digest, [])
                waiting.append(waiter)
                if len(waiting) > 1:
                    continue
                if isinstance(item.origin, PictureOrigin):
                    pictures.append(item)
                elif self._enqueue(item.origin, item.digest):
                    clips.append(item.origin.clip_digest)
            for item in pictures:
                self._pool.submit(self._picture, item)
            for clip_digest in clips:
                self._pool.submit(self._clip, clip_digest)

    def close(self) -> None:
        """Finish what is being decoded, abort the rest. Idempotent."""
        with self._lock:
            self._is_closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
        for digest in list(self._waiting):
            self._deliver(digest, None, Aborted("was not decoded: the media plane was closed"))

    def _enqueue(self, origin: FrameOrigin, digest: bytes) -> bool:
        """Whether the clip needs a new job. Call with the lock held."""
        queue = self._clips.get(origin.clip_digest)
        is_new = queue is None
        if queue is None:
            queue = self._clips[origin.clip_digest] = _ClipQueue(origin)
        queue.add(origin.number, digest)
        return is_new

    def _picture(self, item: MediaItem) -> None:
        started = perf_counter()
        try:
            with self._lock:
                self.num_pictures += 1
            if not isinstance(item.origin, PictureOrigin):
                raise TypeError(type(item.origin))
            pixels = decode_picture(item.origin.content, item.origin.header)
        except Exception as error:  # noqa: BLE001 - every waiter gets an answer
            self._deliver(item.digest, None, _typed(error), _ms_since(started))
        else:
            self._finish([item.digest], pixels, _ms_since(started))

    def _clip(self, clip_digest: bytes) -> None:
        queue = self._clips[clip_digest]
        while True:
            try:
                self._pass(queue)
                error = None
            except Exception as failure:  # noqa: BLE001 - every waiter gets an answer
                error = _typed(failure)
            with self._lock:
                failed = [d for group in queue.digests.values() for d in group] if error else []
                if error or not queue.numbers:
                    del self._clips[clip_digest]
                    break
        for digest in failed:
            self._deliver(digest, None, error)

    def _pass(self, queue: _ClipQueue) -> None:
        """One walk over the clip, for all frames wanted at or after where it stands."""
        origin = queue.origin
        with self._lock:
            self.num_clip_passes += 1

        def next_wanted(position: int) -> int | None:
            with self._lock:
                at = bisect_left(queue.numbers, position)
                return queue.numbers[at] if at < len(queue.numbers) else None

        started = perf_counter()
        with closing(decode_frames(origin.content, origin.clip, next_wanted)) as frames:
            for number, pixels in frames:
                with self._lock:
                    digests = queue.take(number)
                self._finish(digests, pixels, _ms_since(started))
                started = perf_counter()

    def _finish(
        self, digests: list[bytes], pixels: NDArray[np.uint8], decode_ms: float
    ) -> None:
        started = perf_counter()
        inputs: Inputs | None = None
        error: MmserveError | None = None
        try:
            with self._lock:
                self.num_preprocesses += 1
            inputs = self._processor(pixels)
            for array in inputs.values():
                array.flags.writeable = False
        except Exception as failure:  # noqa: BLE001 - every waiter gets an answer
            inputs, error = None, _typed(failure)
        preprocess_ms = _ms_since(started)
        for digest in digests:
            self._deliver(digest, inputs, error, decode_ms, preprocess_ms)

    def _deliver(
        self,
        digest: bytes,
        inputs: Inputs | None,
        error: MmserveError | None,
        decode_ms: float = 0.0,
        preprocess_ms: float = 0.0,
    ) -> None:
        with self._lock:
            waiting = self._waiting.pop(digest, [])
        for on_ready, kind, index in waiting:
            own = named(error, kind, index) if error is not None else None
            try:
                on_ready(digest, inputs, own, decode_ms, preprocess_ms)
            except Exception:  # noqa: BLE001 - others still wait
                _LOG.exception("a receiver of pixels failed")


def _typed(error: Exception) -> MmserveError:
    if isinstance(error, MmserveError):
        return error
    _LOG.error("decoding failed", exc_info=error)
    return Broken("could not be decoded: an internal error")


def _ms_since(started: float) -> float:
    return (perf_counter() - started) * 1000
