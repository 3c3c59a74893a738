"""Exact-match accuracy of `tabletop` on held-out scenes and clips, through mmserve itself.

    python -m benchmarks.tabletop [--scenes 2000] [--clips 400] [--model DIR] [--json FILE]

Scenes go in as PNG files, clips as MP4 files; every question is asked greedily. Seeds are those
of `TEST_SEEDS` from number 10,000 on, which nothing in training or its tuning has seen.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence

from PIL import Image

from benchmarks.record import Record, report
from mmserve.core import (
    BytesSource,
    EngineConfig,
    ImagePart,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    VideoPart,
)
from mmserve.engine import Engine, collect
from training.evaluate import GROUPS, Case, cases, measure

SAMPLING = SamplingParams(max_new_tokens=160, temperature=0.0)
MAX_CLIP_FRAMES = 8
FIRST = 10_000


def request_of(case: Case, number: int) -> Request:
    """One case as a conversation; media stand first in the first turn."""
    media: tuple[ImagePart | VideoPart, ...]
    if case.mp4 is not None:
        media = (VideoPart(BytesSource(case.mp4), num_frames=MAX_CLIP_FRAMES),)
    else:
        media = tuple(ImagePart(BytesSource(_png(image))) for image in case.images)
    asked = [*(question for question, _ in case.history), case.question]
    turns = [Turn("user", (*media, TextPart(asked[0])))]
    for (_, answer), question in zip(case.history, asked[1:], strict=True):
        turns += [Turn("assistant", (TextPart(answer),)), Turn("user", (TextPart(question),))]
    turns.append(Turn("assistant", (), is_open=True))
    return Request(request_id=str(number), parts=tuple(turns), sampling=SAMPLING)


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def answer_all(engine: Engine, many: Sequence[Case]) -> list[str]:
    """Answers of many cases, asked at once."""
    tickets = [engine.submit(request_of(case, number)) for number, case in enumerate(many)]
    return [collect(ticket.outputs()).text for ticket in tickets]


def run(engine: Engine, num_scenes: int, num_clips: int) -> Record:
    """Ask everything and count."""
    table = measure(
        lambda many: answer_all(engine, many), cases(num_scenes, num_clips, FIRST), batch=256
    )
    groups = {
        name: [table[kind] for kind in kinds if kind in table] for name, kinds in GROUPS.items()
    }
    summary = {
        name.replace(" ", "_").lower(): sum(r for r, _ in rows) / sum(n for _, n in rows)
        for name, rows in groups.items()
        if rows
    }
    summary["questions"] = sum(n for _, n in table.values())
    rows = [
        {"kind": kind, "asked": n, "right": right, "exact": round(right / n, 4)}
        for kind, (right, n) in sorted(table.items())
    ]
    return Record(repeats=1, summary=summary, rows=rows)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description="Accuracy of tabletop through mmserve.")
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--model", default="tabletop")
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    flags = parser.parse_args()
    with Engine.from_config(EngineConfig(model=flags.model)) as engine:
        report(run(engine, flags.scenes, flags.clips), flags.json)


if __name__ == "__main__":
    main()
