"""Pixels on demand: bounded pools that decode each picture once for all who ask at a time.

Pictures and passes over clips have threads of their own, so that no picture waits for a clip.

request -> under way already?  yes: wait along
              no: one job, which waits for its sources
                  picture -> decoded for this job
                  frame   -> the clip's pass, running or new; wishes join while it runs
           all sources there -> processor -> inputs -> all who wait
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from mmserve.core import Aborted, Broken, MmserveError
from mmserve.vision.children.port import Decoder
from mmserve.vision.items import ClipFrame, MediaItem, PictureFile
from mmserve.vision.processor import Inputs, Processor, Recipe
from mmserve.vision.refusal import MediaKind, named, refused
from mmserve.vision.wishes import Wishes

__all__ = ["OnReady", "PixelPool"]

_LOG = logging.getLogger(__name__)

OnReady = Callable[[bytes, Inputs | None, MmserveError | None, float, float], None]
"""(digest, inputs or None, error or None, decode milliseconds, preprocess milliseconds)."""


@dataclass(slots=True, eq=False)
class _Job:
    """One item under way: its frames as they come, and what decoding them has cost."""

    item: MediaItem
    frames: list[NDArray[np.uint8] | None]
    num_missing: int
    decode_ms: float = 0.0

    def put(self, place: int, pixels: NDArray[np.uint8], decode_ms: float) -> bool:
        """Take a frame; whether it was the last one missing. Changes: the job."""
        self.frames[place] = pixels
        self.num_missing -= 1
        self.decode_ms += decode_ms
        return not self.num_missing


@dataclass(slots=True, eq=False)
class _ClipQueue:
    """Frames of one clip that are wanted, and who wants each at which place.

    Args:
        source: a frame of the clip.
        wishes: numbers of the wanted frames.
        wanted_by: jobs that want each, and the frame's place in the job.
        position: number behind the last frame that the running pass has given.
        late: numbers wanted since the pass went by them, left to the next pass.
    """

    source: ClipFrame
    wishes: Wishes = field(default_factory=Wishes)
    wanted_by: dict[int, list[tuple[_Job, int]]] = field(default_factory=dict)
    position: int = 0
    late: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Changes: a pass stands at the clip's start."""
        self.position = 0
        self.late.clear()

    def add(self, number: int, job: _Job, place: int) -> None:
        """Changes: one more is wanted."""
        if number < self.position and number not in self.wanted_by:
            self.late.add(number)
        self.wanted_by.setdefault(number, []).append((job, place))
        self.wishes.add(number)

    def take(self, number: int) -> list[tuple[_Job, int]]:
        """Who wants a frame that has come. Changes: it is not wanted any more."""
        self.position = max(self.position, number + 1)
        wanted = self.wanted_by.pop(number, [])
        if wanted:
            self._remove(number)
        return wanted

    def failed(self) -> set[bytes]:
        """Digests of items that the running pass fails if it ends here. Pure."""
        return {
            job.item.digest
            for number, wanted in self.wanted_by.items()
            if number not in self.late
            for job, _ in wanted
        }

    def let_go(self, digests: Collection[bytes]) -> None:
        """Changes: these items want nothing any more."""
        for number, wanted in list(self.wanted_by.items()):
            left = [one for one in wanted if one[0].item.digest not in digests]
            self.wanted_by[number] = left
            if not left:
                del self.wanted_by[number]
                self._remove(number)

    def _remove(self, number: int) -> None:
        self.late.discard(number)
        self.wishes.remove(number)


class PixelPool:
    """Decodes and preprocesses for `num_workers` at once; keeps nothing that is not under way.

    Args:
        processor: makes the model's inputs.
        decoder: makes pixels.
        num_workers: most pictures decoded at once, and most clips beside them.
    """

    def __init__(self, processor: Processor, decoder: Decoder, num_workers: int) -> None:
        self._processor = processor
        self._decoder = decoder
        self._pool = ThreadPoolExecutor(num_workers, thread_name_prefix="mmserve-decode")
        self._passes = ThreadPoolExecutor(num_workers, thread_name_prefix="mmserve-clip")
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
        clips: list[bytes] = []
        with self._lock:
            if self._is_closed:
                raise Aborted("the media plane is closed")
            for item in {item.digest: item for item in items}.values():
                waiting = self._waiting.setdefault(item.digest, [])
                waiting.append((on_ready, item.kind, item.origin.index))
                if len(waiting) == 1:
                    clips += self._begin(item)
            for clip_digest in clips:
                self._passes.submit(self._clip, clip_digest, self._clips[clip_digest])

    def let_go(self, digests: Collection[bytes]) -> list[bytes]:
        """Items of `digests` that were under way; who asked for them hears nothing more.

        Changes: nothing is decoded for them that has not begun; a pass over a clip of which
        nobody wants a frame ends.
        """
        with self._lock:
            gone = [digest for digest in digests if self._waiting.pop(digest, None)]
            for clip_digest, queue in list(self._clips.items()):
                queue.let_go(gone)
                if not queue.wanted_by:
                    queue.wishes.end()
                    del self._clips[clip_digest]
        return gone

    def close(self) -> None:
        """Finish pictures that are being decoded, abort the rest of clips too. Idempotent."""
        with self._lock:
            self._is_closed = True
            clips = list(self._clips.values())
        for queue in clips:
            queue.wishes.end()
        for pool in (self._pool, self._passes):
            pool.shutdown(wait=False, cancel_futures=True)
        for pool in (self._pool, self._passes):
            pool.shutdown(wait=True)
        for digest in list(self._waiting):
            self._deliver(digest, None, Aborted("was not decoded: the media plane was closed"))

    def _begin(self, item: MediaItem) -> list[bytes]:
        """Ask for an item's sources; clips that need a pass. Call with the lock held."""
        sources = item.origin.sources
        job = _Job(item, [None] * len(sources), len(sources))
        if not sources:
            self._pool.submit(self._finish, [job])
        clips: list[bytes] = []
        pictures: dict[bytes, tuple[PictureFile, list[int]]] = {}
        for place, source in enumerate(sources):
            if isinstance(source, PictureFile):
                pictures.setdefault(source.digest, (source, []))[1].append(place)
                continue
            queue = self._clips.get(source.digest)
            if queue is None:
                queue = self._clips[source.digest] = _ClipQueue(source)
                clips.append(source.digest)
            queue.add(source.number, job, place)
        for picture, places in pictures.values():
            self._pool.submit(self._picture, job, places, picture)
        return clips

    def _picture(self, job: _Job, places: Sequence[int], source: PictureFile) -> None:
        started = perf_counter()
        with self._lock:
            if job.item.digest not in self._waiting:
                return
            self.num_pictures += 1
        try:
            pixels = self._decoder.picture(source.content, source.header)
        except Exception as error:  # noqa: BLE001 - every waiter gets an answer
            self._deliver(job.item.digest, None, _typed(error), _ms_since(started))
        else:
            self._put([(job, place) for place in places], pixels, _ms_since(started))

    def _clip(self, clip_digest: bytes, queue: _ClipQueue) -> None:
        """Passes until nothing of the clip is wanted; `close` answers who still waits then."""
        while self._is_wanted(clip_digest, queue):
            try:
                self._pass(queue)
            except Exception as failure:  # noqa: BLE001 - every waiter gets an answer
                self._fail(queue, _typed(failure))

    def _is_wanted(self, clip_digest: bytes, queue: _ClipQueue) -> bool:
        """Whether there is a pass to begin. Changes: the queue, or that there is one."""
        with self._lock:
            is_wanted = bool(queue.wanted_by) and not self._is_closed
            if is_wanted:
                queue.begin()
                self.num_clip_passes += 1
            elif self._clips.get(clip_digest) is queue:
                del self._clips[clip_digest]
        return is_wanted

    def _fail(self, queue: _ClipQueue, error: MmserveError) -> None:
        """Tell those whose frames the pass has failed; others have come too late for it."""
        with self._lock:
            failed = set[bytes]() if self._is_closed else queue.failed()
            queue.let_go(failed)
        for digest in failed:
            self._deliver(digest, None, error)

    def _pass(self, queue: _ClipQueue) -> None:
        """One walk over the clip, for all frames wanted at or after where it stands."""
        source = queue.source
        num_frames = 0
        started = perf_counter()
        walk = self._decoder.frames(source.content, source.clip, queue.wishes)
        with closing(walk) as frames:
            for number, pixels in frames:
                num_frames += 1
                with self._lock:
                    wanted = queue.take(number)
                self._put(wanted, pixels, _ms_since(started))
                started = perf_counter()
        if not num_frames:
            raise refused("undecodable", "cannot be decoded: none of its frames came")

    def _put(
        self, wishes: list[tuple[_Job, int]], pixels: NDArray[np.uint8], decode_ms: float
    ) -> None:
        """Give pixels to all who want them; whoever has all of its frames is finished."""
        alike: dict[tuple[Recipe, tuple[int, ...]], list[_Job]] = {}
        with self._lock:
            for job, place in wishes:
                if job.put(place, pixels, decode_ms):
                    frames = tuple(map(id, job.frames))
                    alike.setdefault((job.item.origin.recipe, frames), []).append(job)
        for jobs in alike.values():
            self._finish(jobs)

    def _finish(self, jobs: list[_Job]) -> None:
        """Preprocess the frames that all of `jobs` have, once, and give the result to them."""
        started = perf_counter()
        inputs: Inputs | None = None
        error: MmserveError | None = None
        job = jobs[0]
        frames = [frame for frame in job.frames if frame is not None]
        for done in jobs:
            done.frames.clear()
        try:
            with self._lock:
                self.num_preprocesses += 1
            inputs = self._processor.inputs(frames, job.item.origin.recipe)
            for array in inputs.values():
                array.flags.writeable = False
        except Exception as failure:  # noqa: BLE001 - every waiter gets an answer
            inputs, error = None, _typed(failure)
        preprocess_ms = _ms_since(started)
        for done in jobs:
            self._deliver(done.item.digest, inputs, error, done.decode_ms, preprocess_ms)

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
