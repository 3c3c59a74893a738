"""The media plane: parts of a request become identified items, and later, on demand, pixels."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from time import perf_counter
from weakref import WeakValueDictionary

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
from mmserve.vision.children.decoders import new_decoder
from mmserve.vision.decoding import OnReady, PixelPool
from mmserve.vision.facts import RecentFacts
from mmserve.vision.fetch import Fetcher
from mmserve.vision.frames import ClipHeader
from mmserve.vision.header import PictureHeader, is_still
from mmserve.vision.identity import (
    content_digest,
    frame_options,
    joined,
    media_digest,
    new_key,
)
from mmserve.vision.items import (
    ClipFrame,
    FileBytes,
    MediaItem,
    Origin,
    PictureFile,
    ResolvedMedia,
)
from mmserve.vision.preview import preview
from mmserve.vision.probe import probe_picture
from mmserve.vision.processor import Bounds, FrameFacts, ItemPlan, Processor
from mmserve.vision.refusal import MediaKind, named, refused
from mmserve.vision.sampling import FrameTimes, choose_frames, exact_fps
from mmserve.vision.sources import SourceReader

__all__ = ["MediaCounters", "MediaPlane"]

_REMEMBERED_FRAMES = 200_000

_Facts = tuple[PictureHeader, bytes]


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


@dataclass(frozen=True, slots=True, eq=False)
class _Shot:
    """Pixels to come: where from, how large, and when in a clip; None for a picture."""

    source: PictureFile | ClipFrame
    width: int
    height: int
    time: Fraction | None


class MediaPlane:
    """Fetches, identifies and sizes media without decoding; decodes and preprocesses on demand.

    Safe to use from any thread. Owns threads for `config.workers` pictures and as
    many clips until `close`.

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
        self._texts: RecentFacts[_Facts] = RecentFacts(_REMEMBERED_FRAMES // 10)
        self._clips: RecentFacts[ClipHeader] = RecentFacts(_REMEMBERED_FRAMES)
        self._decoder = new_decoder(config)
        self._pool = PixelPool(processor, self._decoder, config.workers)
        self._lock = threading.Lock()
        self._files: WeakValueDictionary[bytes, FileBytes] = WeakValueDictionary()
        """Files that some item keeps alive."""
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

    def hold(self, part: ImagePart | VideoPart, *, salt: str) -> None:
        """Keep what requests fetch of a part until `release`. Changes: what is kept."""
        if not isinstance(part.source, FramesSource):
            self._reader.hold(part.source, salt=salt)

    def release(self, part: ImagePart | VideoPart, *, salt: str) -> None:
        """Undo one `hold`. Changes: what is kept."""
        if not isinstance(part.source, FramesSource):
            self._reader.release(part.source, salt=salt)

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
        self._decoder.warm()
        try:
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

    def previews(self, items: Sequence[MediaItem]) -> dict[bytes, tuple[bytes, ...]]:
        """Small JPEGs of what `items` show, by digest; see `preview`. Blocks; keeps nothing."""
        return preview(self._decoder, items)

    def let_go(self, digests: Collection[bytes]) -> list[bytes]:
        """Items of `digests` that were under way; who asked for them hears nothing more.

        Changes: what is decoded. Returns at once.
        """
        return self._pool.let_go(digests)

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
        """Finish pictures being decoded, leave clips, abort what waits. Idempotent."""
        self._pool.close()

    def _image(self, part: ImagePart, place: _Place) -> ResolvedMedia:
        if isinstance(part.source, FramesSource):
            raise BadRequest("is given as frames of a clip", field="image", reason="frames")
        started = perf_counter()
        file, fetched = self._opened(part.source, place)
        header = file.header
        plan = self._processor.picture(header.width, header.height, _bounds(part))
        item = self._item(plan, (_Shot(file, header.width, header.height, None),), place)
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
        chosen = part
        if part.num_frames is None and part.fps is None and part.times_s is None:
            chosen = replace(part, num_frames=count)
        shots = tuple(
            self._still(self._opened(source.frames[n], place)[0], times.seconds(n))
            for n in choose_frames(times, chosen, self._config)
        )
        return self._frames(shots, part, place, None, (started, started))

    def _clip(self, part: VideoPart, place: _Place) -> ResolvedMedia:
        if isinstance(part.source, FramesSource):
            raise TypeError(type(part.source))
        started = perf_counter()
        content = self._read(part.source, place)
        moments = (started, perf_counter())
        if is_still(content):
            choose_frames(FrameTimes((0,), Fraction(1), 1), part, self._config)
            still = self._still(self._file(content), Fraction(0))
            return self._frames((still,), part, place, None, moments)
        digest = content_digest(self._key, content)
        clip = self._clips.get(
            digest, lambda: self._decoder.clip(content), lambda fact: fact.num_frames
        )
        file = self._held(digest, content)
        shots = tuple(
            _Shot(
                ClipFrame(file, clip, digest, number),
                clip.width,
                clip.height,
                clip.times.seconds(number),
            )
            for number in choose_frames(clip.times, part, self._config, clip.key_frames)
        )
        note = None
        if clip.num_unreadable:
            note = f"{clip.num_unreadable} of {clip.num_frames} frames were unreadable"
        return self._frames(shots, part, place, note, moments)

    def _frames(
        self,
        shots: tuple[_Shot, ...],
        part: VideoPart,
        place: _Place,
        note: str | None,
        moments: tuple[float, float],
    ) -> ResolvedMedia:
        facts = [_facts(shot) for shot in shots]
        plans = self._processor.clip(facts, _bounds(part))
        items = tuple(
            self._item(plan, tuple(shots[n] for n in plan.frames), place) for plan in plans
        )
        report = FrameReport(tuple(float(fact.time) for fact in facts), note)
        return _resolved(items, report, *moments)

    def _read(self, source: BytesSource | PathSource | UrlSource, place: _Place) -> bytes:
        if not place.is_early:
            return self._reader.read(source, salt=place.salt)
        content = self._reader.read_early(source, salt=place.salt)
        if content is None:
            raise _RequestCameFirst
        return content

    def _opened(
        self, source: BytesSource | PathSource | UrlSource, place: _Place
    ) -> tuple[PictureFile, float]:
        """A picture's file, and when its bytes had come.

        A data: address seen before is known by its text, and is not read from base64 again
        unless its pixels are wanted.
        """
        if not isinstance(source, UrlSource) or source.url[:5].lower() != "data:":
            content = self._read(source, place)
            fetched = perf_counter()
            return self._file(content), fetched
        read = cache(lambda: self._read(source, place))
        text = content_digest(self._key, source.url.encode("utf-8", "surrogatepass"))
        header, digest = self._texts.get(text, lambda: self._known(read()), lambda _: 1)
        return PictureFile(read, header, digest), perf_counter()

    def _file(self, content: bytes) -> PictureFile:
        header, digest = self._known(content)
        file = self._held(digest, content)
        return PictureFile(lambda: file.content, header, digest)

    def _held(self, digest: bytes, content: bytes) -> FileBytes:
        """A file's bytes, the same ones for all requests under way that have the file."""
        with self._lock:
            return self._files.setdefault(digest, FileBytes(content))

    def _known(self, content: bytes) -> _Facts:
        digest = content_digest(self._key, content)
        header = self._pictures.get(
            digest,
            lambda: probe_picture(content, self._config, self._decoder.header),
            lambda _: 1,
        )
        return header, digest

    def _still(self, file: PictureFile, time: Fraction) -> _Shot:
        return _Shot(file, file.header.width, file.header.height, time)

    def _item(self, plan: ItemPlan, shots: tuple[_Shot, ...], place: _Place) -> MediaItem:
        times = [shot.time for shot in shots if shot.time is not None]
        return MediaItem(
            digest=self._identity(plan, shots, place.salt),
            kind=place.kind,
            layout=plan.layout,
            num_patches=plan.num_patches,
            width=shots[0].width if shots else 0,
            height=shots[0].height if shots else 0,
            timestamps_s=tuple(float(time) for time in times),
            origin=Origin(tuple(shot.source for shot in shots), plan.recipe, place.index),
        )

    def _identity(self, plan: ItemPlan, shots: tuple[_Shot, ...], salt: str) -> bytes:
        return media_digest(
            self._key,
            content=joined(_stands_for(shot.source) for shot in shots),
            options=joined([repr(plan.recipe).encode(), *map(_options, shots)]),
            processor=self._processor.fingerprint,
            model=self._model,
            salt=salt,
        )


def _stands_for(source: PictureFile | ClipFrame) -> bytes:
    """Digest of what a picture or frame is made of; a frame's is the same in a longer clip."""
    return source.digest if isinstance(source, PictureFile) else source.frame_digest


def _options(shot: _Shot) -> bytes:
    """Decode options of a frame; a picture has none."""
    source = shot.source
    if isinstance(source, PictureFile):
        return b""
    return frame_options(source.clip.times.seconds(source.number), source.clip.turn)


def _facts(shot: _Shot) -> FrameFacts:
    source, time = shot.source, shot.time or Fraction(0)
    duration = source.clip.times.duration if isinstance(source, ClipFrame) else None
    return FrameFacts(shot.width, shot.height, time, duration)


def _bounds(part: ImagePart | VideoPart) -> Bounds:
    return Bounds(part.max_pixels, part.min_pixels)


def _kind_of(part: ImagePart | VideoPart) -> MediaKind:
    return "image" if isinstance(part, ImagePart) else "video"


def _resolved(
    items: tuple[MediaItem, ...], report: FrameReport | None, started: float, fetched: float
) -> ResolvedMedia:
    probe_ms = (perf_counter() - fetched) * 1000
    return ResolvedMedia(items, report, (fetched - started) * 1000, probe_ms)
