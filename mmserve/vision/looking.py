"""Looks at one media part as the model will see it, stage by stage."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from mmserve.core import ImagePart, ItemLook, MmserveError, VideoPart
from mmserve.vision.items import ClipFrame, MediaItem, PictureFile, ResolvedMedia
from mmserve.vision.plane import MediaPlane
from mmserve.vision.processor import Inputs

__all__ = ["Sight", "look_at"]


@dataclass(frozen=True, slots=True)
class Sight:
    """A part resolved, decoded and preprocessed, with what each stage took."""

    source: str
    items: tuple[ItemLook, ...]
    resolved: ResolvedMedia


@dataclass(slots=True)
class _Arrivals:
    """Inputs as they come from the plane's threads."""

    num_missing: int
    inputs: dict[bytes, tuple[Inputs, float, float]] = field(default_factory=dict)
    error: MmserveError | None = None
    is_done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(
        self,
        digest: bytes,
        inputs: Inputs | None,
        error: MmserveError | None,
        decode_ms: float,
        preprocess_ms: float,
    ) -> None:
        """See `decoding.OnReady`; several threads may call at a time."""
        with self.lock:
            if inputs is not None:
                self.inputs[digest] = (inputs, decode_ms, preprocess_ms)
            self.error = error or self.error
            self.num_missing -= 1
            if not self.num_missing:
                self.is_done.set()


def look_at(plane: MediaPlane, part: ImagePart | VideoPart, *, salt: str) -> Sight:
    """Resolve, decode and preprocess a part. Raises as these do; blocks until all is done."""
    resolved = plane.resolve(part, salt=salt, index=0)
    unique = {item.digest: item for item in resolved.items}
    arrivals = _Arrivals(len(unique))
    plane.request_pixels(tuple(unique.values()), arrivals)
    arrivals.is_done.wait()
    if arrivals.error is not None:
        raise arrivals.error
    items = tuple(_look(item, *arrivals.inputs[item.digest]) for item in resolved.items)
    return Sight(_source(resolved.items), items, resolved)


def _look(item: MediaItem, inputs: Inputs, decode_ms: float, preprocess_ms: float) -> ItemLook:
    return ItemLook(
        identity=item.digest.hex(),
        width=item.width,
        height=item.height,
        timestamps_s=item.timestamps_s,
        pieces=item.layout.pieces,
        grid=item.layout.grid,
        num_features=item.layout.num_features,
        num_patches=item.num_patches,
        inputs=tuple((name, array.shape, str(array.dtype)) for name, array in inputs.items()),
        decode_ms=decode_ms,
        preprocess_ms=preprocess_ms,
    )


def _source(items: tuple[MediaItem, ...]) -> str:
    """Format, size and turn of what the first item shows."""
    found = next((item.origin.sources[0] for item in items if item.origin.sources), None)
    if isinstance(found, ClipFrame):
        clip = found.clip
        turned = ", turned upright" if clip.turn else ""
        seconds = float(clip.times.duration)
        return (
            f"{clip.codec} clip, {clip.width} x {clip.height}{turned}, "
            f"{clip.num_frames} frames in {seconds:.3g} s"
        )
    if isinstance(found, PictureFile):
        header = found.header
        turned = f", turned by orientation {header.orientation}"
        return (
            f"{header.format} picture, {header.width} x {header.height}"
            f"{turned if header.orientation != 1 else ''}"
        )
    return "nothing that has pixels"
