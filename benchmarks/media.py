"""The media plane beside transformers' processors: intake, decoding, clips, memory.

    again      a 1080p JPEG asked about once more: from bytes to the admitted request
    first      one seen for the first time: from bytes to inputs, beside transformers
    clip       a long clip asked many questions: passes over the file, frames encoded
    windows    a window that slides over it: encodes for each new frame
    memory     peak of this process and of its children, beside the clip's frames all at once

The checkpoint is a seeded Qwen2.5-VL of a few layers with the sizes that its processor has in
earnest, so that tokens and patches of a picture are those of the real family.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
from PIL import Image

from benchmarks.models import qwen_vl_small
from benchmarks.record import Record, report
from mmserve.core import (
    BytesSource,
    EngineConfig,
    ImagePart,
    MediaConfig,
    Part,
    Request,
    SamplingParams,
    TextPart,
    UrlSource,
    VideoPart,
)
from mmserve.engine import Engine, collect
from mmserve.vision.children.pool import shared_children

_PICTURE = (1920, 1080)
_CLIP = (320, 240)
_RATE = 5
_GREEDY = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class Lengths:
    """How much one run does."""

    repeats: int
    clip_s: int
    num_questions: int
    num_windows: int


_WHOLE = Lengths(repeats=15, clip_s=600, num_questions=20, num_windows=12)
_QUICK = Lengths(repeats=3, clip_s=20, num_questions=3, num_windows=3)


def photograph(seed: int) -> bytes:
    """A JPEG of 1080p with structure at every scale, about half a megabyte. Pure."""
    random = np.random.default_rng(seed)
    width, height = _PICTURE
    picture = np.zeros((height, width, 3), np.float32)
    for cells in (6, 24, 96, 384):
        coarse = random.integers(0, 256, (cells, cells, 3), dtype=np.uint8)
        large = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        picture += np.asarray(large, np.float32) / 4
    buffer = io.BytesIO()
    Image.fromarray(picture.astype(np.uint8)).save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def clip(seconds: int) -> bytes:
    """An H.264 clip in which a block wanders over a textured ground. Pure."""
    random = np.random.default_rng(0)
    width, height = _CLIP
    ground = random.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    base = np.asarray(Image.fromarray(ground).resize((width, height)))
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=_RATE, options={"g": "50", "crf": "28"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(seconds * _RATE):
            pixels = base.copy()
            x, y = (number * 7) % (width - 40), (number * 3) % (height - 40)
            pixels[y : y + 40, x : x + 40] = (number * 5) % 256
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return buffer.getvalue()


def ask(engine: Engine, *parts: Part, salt: str = "") -> float:
    """Milliseconds until a request is admitted; it is then answered."""
    request = Request(request_id="m", parts=parts, sampling=_GREEDY, cache_salt=salt)
    began = time.perf_counter()
    ticket = engine.submit(request)
    ticket.report()
    admitted = time.perf_counter()
    collect(ticket.outputs())
    return (admitted - began) * 1e3


def middle(run: Callable[[], float], repeats: int) -> float:
    """The median of several runs."""
    return statistics.median(run() for _ in range(repeats))


def again_rows(engine: Engine, lengths: Lengths) -> list[dict[str, Any]]:
    """A picture that was asked about before, given as bytes and as a data address."""
    content = photograph(1)
    address = f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
    question = TextPart("What is it?")
    text_ms = middle(lambda: ask(engine, question), lengths.repeats)
    rows = []
    for name, source in (("bytes", BytesSource(content)), ("data address", UrlSource(address))):
        ask(engine, ImagePart(source), question)
        ms = middle(lambda s=source: ask(engine, ImagePart(s), question), lengths.repeats)
        rows.append({"case": f"again, {name}", "ms": ms, "beyond_text_ms": ms - text_ms})
    return rows


def first_rows(engine: Engine, directory: Path, lengths: Lengths) -> list[dict[str, Any]]:
    """A picture nobody has seen: from bytes to inputs here, and by transformers' processor."""
    from transformers import AutoImageProcessor  # noqa: PLC0415 - heavy

    processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
    pictures = [photograph(seed) for seed in range(2, 2 + lengths.repeats)]

    def theirs(content: bytes) -> float:
        began = time.perf_counter()
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        processor([picture], return_tensors="np")
        return (time.perf_counter() - began) * 1e3

    def ours(content: bytes) -> float:
        look = engine.look(ImagePart(BytesSource(content)))
        stages = sum(item.decode_ms + item.preprocess_ms for item in look.items)
        return look.fetch_ms + look.probe_ms + stages

    both = [(ours(content), theirs(content)) for content in pictures]
    return [
        {"case": "first, mmserve", "ms": statistics.median(pair[0] for pair in both)},
        {"case": "first, transformers", "ms": statistics.median(pair[1] for pair in both)},
    ]


def clip_rows(
    engine: Engine, directory: Path, content: bytes, lengths: Lengths
) -> list[dict[str, Any]]:
    """Questions about a long clip, all at once; transformers' way for each question alone."""
    part = VideoPart(BytesSource(content), num_frames=32)
    before = engine.counters()
    began = time.perf_counter()
    tickets = [
        engine.submit(
            Request(request_id=str(n), parts=(part, TextPart(f"{n}?")), sampling=_GREEDY)
        )
        for n in range(lengths.num_questions)
    ]
    for ticket in tickets:
        collect(ticket.outputs())
    seconds = time.perf_counter() - began
    after = engine.counters()
    theirs = transformers_clip_s(directory, content)
    return [
        {
            "case": f"clip of {lengths.clip_s} s, {lengths.num_questions} questions",
            "seconds": seconds,
            "passes": after["media_decodes_total"] - before["media_decodes_total"],
            "encoded": after["encoded_items_total"] - before["encoded_items_total"],
        },
        {
            "case": "transformers: decode and preprocess, a question",
            "seconds": theirs,
            "all_questions_s": theirs * lengths.num_questions,
        },
    ]


def transformers_clip_s(directory: Path, content: bytes) -> float:
    """Seconds to read 32 frames evenly and preprocess them with the family's processor."""
    from transformers import AutoImageProcessor  # noqa: PLC0415 - heavy

    processor = AutoImageProcessor.from_pretrained(directory, backend="pil")
    began = time.perf_counter()
    with av.open(io.BytesIO(content)) as container:
        total = container.streams.video[0].frames
        wanted = set(np.linspace(0, total - 1, 32).round().astype(int).tolist())
        frames = [
            frame.to_ndarray(format="rgb24")
            for number, frame in enumerate(container.decode(video=0))
            if number in wanted
        ]
    processor([Image.fromarray(frame) for frame in frames], return_tensors="np")
    return time.perf_counter() - began


def window_rows(engine: Engine, content: bytes, lengths: Lengths) -> list[dict[str, Any]]:
    """A window of ten seconds that moves on by two: encodes a step, of the groups it brings."""
    engine.flush_cache(10)
    encodes = []
    for step in range(lengths.num_windows):
        part = VideoPart(
            BytesSource(content), fps=2.0, start_s=2.0 * step, end_s=2.0 * step + 10.0
        )
        before = engine.counters()["encoded_items_total"]
        ask(engine, part, TextPart("What moves?"))
        encodes.append(engine.counters()["encoded_items_total"] - before)
    later = encodes[1:]
    return [
        {
            "case": "sliding window of 10 s by 2 s at 2 frames a second",
            "encodes_first": encodes[0],
            "encodes_step": statistics.mean(later),
            "new_groups_step": 2,
        }
    ]


def memory_rows(content: bytes) -> list[dict[str, Any]]:
    """Peak memory so far, of this process and of the largest child that decodes."""
    mine = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks = [_peak_kib(number) for number in shared_children().process_ids()]
    with av.open(io.BytesIO(content)) as container:
        num_frames = container.streams.video[0].frames
    frames = num_frames * _CLIP[0] * _CLIP[1] * 3
    return [
        {
            "case": "peak memory, MiB",
            "process": mine / 1024,
            "largest_child": max(peaks, default=0) / 1024,
            "all_frames_of_the_clip": frames / (1 << 20),
        }
    ]


def _peak_kib(process_id: int) -> int:
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1])


def run(lengths: Lengths) -> Record:
    """All rows on one engine."""
    with TemporaryDirectory() as folder:
        directory = qwen_vl_small(Path(folder) / "qwen")
        config = EngineConfig(
            model=str(directory), num_slots=32768, media=MediaConfig(max_video_frames=768)
        )
        content = clip(lengths.clip_s)
        with Engine.from_config(config) as engine:
            ask(engine, ImagePart(BytesSource(photograph(0))), TextPart("warm"))
            rows = again_rows(engine, lengths)
            rows += first_rows(engine, directory, lengths)
            rows += clip_rows(engine, directory, content, lengths)
            rows += window_rows(engine, content, lengths)
            rows += memory_rows(content)
    by_case = {row["case"]: row for row in rows}
    first, reference = by_case["first, mmserve"]["ms"], by_case["first, transformers"]["ms"]
    windows = next(row for row in rows if "encodes_step" in row)
    clips = next(row for row in rows if "passes" in row)
    summary = {
        "again_bytes_ms": by_case["again, bytes"]["beyond_text_ms"],
        "again_data_address_ms": by_case["again, data address"]["beyond_text_ms"],
        "first_over_transformers": first / reference,
        "clip_passes": clips["passes"],
        "encodes_per_new_group": windows["encodes_step"] / windows["new_groups_step"],
    }
    return Record(repeats=lengths.repeats, summary=summary, rows=rows)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller run")
    parser.add_argument("--json", help="write the record here, or - for standard output")
    arguments = parser.parse_args()
    report(run(_QUICK if arguments.quick else _WHOLE), arguments.json)


if __name__ == "__main__":
    main()
