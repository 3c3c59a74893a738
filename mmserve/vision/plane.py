"""The media plane: parts of a request become identified items, and later, on demand, pixels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from time import perf_counter

from mmserve.core import (
    BadRequest,
    BytesSource,
    FrameReport,
    FramesSource,
    ImagePart,
    MediaConfig,
    MmserveError,
    PathSource,
    UrlSource,
    VideoPart,
)
from mmserve.vision.decoding import OnReady, PixelPool, Processor
from mmserve.vision.facts import RecentFacts
from mmserve.vision.fetch import Fetcher
from mmserve.vision.frames import ClipHeader
from mmserve.vision.header import PictureHeader, is_still
from mmserve.vision.identity import content_digest, frame_options, media_digest, new_key
from mmserve.vision.items import FrameOrigin, MediaItem, PictureOrigin, ResolvedMedia
from mmserve.vision.probe import probe_picture
from mmserve.vision.refusal import MediaKind, named, refused
from mmserve.vision.sampling import FrameTimes, choose_frames, exact_fps
from mmserve.vision.sources import SourceReader
from mmserve.vision.video import probe_clip

__all__ = ["MediaCounters", "MediaPlane"]

_REMEMBERED_FRAMES = 200_000


@dataclass(frozen=True, slots=True)
class MediaCounters:
    """What the plane has done since it was made.

    Args:
        num_fetches: http and https addresses fetched.
        num_pictures: picture files decoded.
        num_clip_passes: passes over a clip to decode frames.
        num_preprocesses: pictures and frames turned into model inputs.
        num_prepared: pictures and clips identified because of a hint.
    """

    num_fetches: int
    num_pictures: int
    num_clip_passes: int
    num_preprocesses: int
    num_prepared: int = 0


class _RequestCameFirst(Exception):
    """What a hint was to fetch, a request has fetched or is fetching."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose part it is: kind and index name it in errors, the salt separates tenants."""

    kind: MediaKind
    index: int
    salt: str
    is_early: bool = False
    """Whether a hint asks, and no request."""


class MediaPlane:
    """Fetches, identifies and sizes media without decoding; decodes and preprocesses on demand.

    Safe to use from any thread. Owns a pool of `config.workers` threads until `close`.

    Args:
        config: limits and guards.
        processor: the model's picture processor.
        model_fingerprint: 16 bytes that stand for the model in every digest.
        key: 16 bytes that key the digests; drawn at random if not given.
        fetcher: reads http and https addresses; one under `config` if not given.
    """

    def __init__(
        self,
        config: MediaConfig,
        processor: Processor,
        *,
        model_fingerprint: bytes,
        key: bytes | None = None,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._config = config
        self._processor = processor
        self._model = model_fingerprint
        self._key = new_key() if key is None else key
        self._reader = SourceReader(config, fetcher or Fetcher(config))
        self._pictures: RecentFacts[PictureHeader] = RecentFacts(_REMEMBERED_FRAMES // 10)
        self._clips: RecentFacts[ClipHeader] = RecentFacts(_REMEMBERED_FRAMES)
        self._pool = PixelPool(processor, config.workers)
        self._lock = threading.Lock()
        self._num_prepared = 0

    def resolve(self, part: ImagePart | VideoPart, *, salt: str, index: int) -> ResolvedMedia:
        """Identify one media part: fetch its bytes, read its header, choose its frames.

        A still picture sent as a video is a clip of one frame. Frames given as pictures are all
        taken if the part asks for no number or rate of its own, and each has the identity that
        its picture has.

        Args:
            part: what the request holds.
            salt: the request's cache salt.
            index: place of the part among the request's media parts, from 0.

        Raises:
            MediaRefused: the source cannot be had or used (`index` is a field).
            BadRequest: a value of the part cannot be served.

        Blocks on disk and network; decodes no pixels beyond a clip's first frame.
        """
        return self._resolve(part, _Place(_kind_of(part), index, salt))

    def expect(self, part: ImagePart | VideoPart, *, salt: str) -> None:
        """Take note of a hint whose `prepare` follows; returns at once.

        Changes: of what addresses are fetched once for the hint and its requests.
        """
        if not isinstance(part.source, FramesSource):
            self._reader.expect(part.source, salt=salt)

    def prepare(self, part: ImagePart | VideoPart, *, salt: str) -> ResolvedMedia | None:
        """As `resolve`, before any request: what is fetched is kept for the one to come.

        None if a request has come meanwhile and does the work. Raises and blocks as `resolve`.
        """
        try:
            resolved = self._resolve(part, _Place(_kind_of(part), 0, salt, is_early=True))
        except _RequestCameFirst:
            return None
        finally:
            if not isinstance(part.source, FramesSource):
                self._reader.give_up(part.source, salt=salt)
        with self._lock:
            self._num_prepared += 1
        return resolved

    def forget(self) -> None:
        """Changes: nothing that hints have fetched is kept."""
        self._reader.forget()

    def _resolve(self, part: ImagePart | VideoPart, place: _Place) -> ResolvedMedia:
        try:
            self._processor.check_bounds(part.max_pixels, part.min_pixels)
            if isinstance(part, ImagePart):
                return self._image(part, place)
            if isinstance(part.source, FramesSource):
                return self._given_frames(part, part.source, place)
            return self._clip(part, place)
        except MmserveError as error:
            raise named(error, place.kind, place.index) from None

    def request_pixels(self, items: Sequence[MediaItem], on_ready: OnReady) -> None:
        """Decode and preprocess `items` in the pool; returns at once.

        `on_ready(digest, inputs, error, decode_ms, preprocess_ms)` is called exactly once for
        each different digest, from a thread of the pool. Items under way are not decoded again;
        frames of one clip are decoded in one pass. Results are not kept after delivery.
        """
        self._pool.request(items, on_ready)

    def counters(self) -> MediaCounters:
        """A snapshot of the counters. Pure."""
        pool = self._pool
        return MediaCounters(
            self._reader.num_fetches,
            pool.num_pictures,
            pool.num_clip_passes,
            pool.num_preprocesses,
            self._num_prepared,
        )

    def close(self) -> None:
        """Finish what is being decoded, abort what waits, end the threads. Idempotent."""
        self._pool.close()

    def _image(self, part: ImagePart, place: _Place) -> ResolvedMedia:
        if isinstance(part.source, FramesSource):
            raise BadRequest("is given as frames of a clip", field="image", reason="frames")
        started = perf_counter()
        content = self._read(part.source, place)
        fetched = perf_counter()
        item = self._picture(content, place, None)
        return _resolved((item,), None, started, fetched)

    def _given_frames(
        self, part: VideoPart, source: FramesSource, place: _Place
    ) -> ResolvedMedia:
        started = perf_counter()
        count = len(source.frames)
        if not count:
            raise refused("undecodable", "has no frames")
        tick_s = 1 / exact_fps(source.fps)
        times = FrameTimes(range(count), tick_s, count)
        if part.num_frames is None and part.fps is None:
            part = VideoPart(
                part.source, num_frames=count, start_s=part.start_s, end_s=part.end_s
            )
        items = tuple(
            self._picture(self._read(source.frames[n], place), place, times.seconds(n))
            for n in choose_frames(times, part, self._config)
        )
        return _resolved(items, None, started, started)

    def _clip(self, part: VideoPart, place: _Place) -> ResolvedMedia:
        if isinstance(part.source, FramesSource):
            raise TypeError(type(part.source))
        started = perf_counter()
        content = self._read(part.source, place)
        fetched = perf_counter()
        if is_still(content):
            choose_frames(FrameTimes((0,), Fraction(1), 1), part, self._config)
            still = self._picture(content, place, Fraction(0))
            return _resolved((still,), None, started, fetched)
        digest = content_digest(self._key, content)
        clip = self._clips.get(
            digest, lambda: probe_clip(content, self._config), lambda fact: fact.num_frames
        )
        items = tuple(
            self._frame(content, clip, digest, number, place)
            for number in choose_frames(clip.times, part, self._config)
        )
        note = None
        if clip.num_unreadable:
            note = f"{clip.num_unreadable} of {clip.num_frames} frames were unreadable"
        return _resolved(items, note, started, fetched)

    def _read(self, source: BytesSource | PathSource | UrlSource, place: _Place) -> bytes:
        if not place.is_early:
            return self._reader.read(source, salt=place.salt)
        content = self._reader.read_early(source, salt=place.salt)
        if content is None:
            raise _RequestCameFirst
        return content

    def _picture(self, content: bytes, place: _Place, time: Fraction | None) -> MediaItem:
        digest = content_digest(self._key, content)
        header = self._pictures.get(
            digest, lambda: probe_picture(content, self._config), lambda _: 1
        )
        return MediaItem(
            digest=self._identity(digest, b"", place.salt),
            kind=place.kind,
            num_tokens=self._processor.num_tokens(header.width, header.height),
            num_patches=self._processor.num_patches(header.width, header.height),
            width=header.width,
            height=header.height,
            timestamp_s=None if time is None else float(time),
            origin=PictureOrigin(content, header, place.index),
        )

    def _frame(
        self, content: bytes, clip: ClipHeader, digest: bytes, number: int, place: _Place
    ) -> MediaItem:
        time = clip.times.seconds(number)
        return MediaItem(
            digest=self._identity(digest, frame_options(time, clip.turn), place.salt),
            kind="video",
            num_tokens=self._processor.num_tokens(clip.width, clip.height),
            num_patches=self._processor.num_patches(clip.width, clip.height),
            width=clip.width,
            height=clip.height,
            timestamp_s=float(time),
            origin=FrameOrigin(content, clip, digest, number, place.index),
        )

    def _identity(self, content: bytes, options: bytes, salt: str) -> bytes:
        return media_digest(
            self._key,
            content=content,
            options=options,
            processor=self._processor.fingerprint,
            model=self._model,
            salt=salt,
        )


def _kind_of(part: ImagePart | VideoPart) -> MediaKind:
    return "image" if isinstance(part, ImagePart) else "video"


def _resolved(
    items: tuple[MediaItem, ...], note: str | None, started: float, fetched: float
) -> ResolvedMedia:
    times = tuple(item.timestamp_s for item in items if item.timestamp_s is not None)
    report = FrameReport(times, note) if times else None
    probe_ms = (perf_counter() - fetched) * 1000
    return ResolvedMedia(items, report, (fetched - started) * 1000, probe_ms)
