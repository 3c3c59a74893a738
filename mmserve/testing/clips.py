"""Generated clips of a table-top scene in which one object changes.

`clip(seed)` follows the seed alone; the bytes of its video also depend on the versions of PyAV
and x264. Seeds are split as in `mmserve.testing.scenes`.
"""

import io
import random
from collections.abc import Iterable
from dataclasses import dataclass

import av
import numpy as np
from PIL import Image

from mmserve.testing.scenes_draw import PICTURE_PIXELS, paint, paint_table
from mmserve.testing.scenes_questions import Question
from mmserve.testing.scenes_stories import Story, ask_story, sample_story

__all__ = ["CLIP_FRAMES_PER_SECOND", "Clip", "clip", "encode_mp4", "paint_story"]

CLIP_FRAMES_PER_SECOND = 2


@dataclass(frozen=True, slots=True)
class Clip:
    """A video, the pictures it was made of, its ground truth and questions about it.

    `mp4` is H.264 in MP4 at two frames a second; `frames` are the pictures before coding, RGB,
    288 x 288, one for each frame of the video. Frames and questions follow from the seed; the
    coded bytes have been seen to differ between two encodings of the same frames.
    """

    seed: int
    story: Story
    mp4: bytes
    frames: tuple[Image.Image, ...]
    questions: tuple[Question, ...]


def clip(seed: int) -> Clip:
    """The clip of `seed`. Cost: about 60 ms."""
    rng = random.Random(f"clip {seed}")
    story = sample_story(rng)
    frames = paint_story(story, rng)
    return Clip(seed, story, encode_mp4(frames), frames, ask_story(story, rng))


def paint_story(story: Story, rng: random.Random) -> tuple[Image.Image, ...]:
    """The frames of `story`; a thing keeps its tint and tilt through them. Changes: `rng`."""
    looks = [rng.getrandbits(32) for _ in range(len(story.others) + 1)]
    table = paint_table(rng)
    for thing, look in zip(story.others, looks, strict=False):
        table = paint(table, [thing], {}, random.Random(look))
    return tuple(
        paint(table, [actor] if actor else [], {}, random.Random(looks[-1]))
        for actor in story.path
    )


def encode_mp4(frames: Iterable[Image.Image]) -> bytes:
    """`frames` as H.264 (yuv420p, nearly lossless) in an MP4 file."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=CLIP_FRAMES_PER_SECOND)
        stream.width = stream.height = PICTURE_PIXELS
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "12", "preset": "veryfast", "threads": "1"}
        for picture in frames:
            frame = av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return sink.getvalue()
