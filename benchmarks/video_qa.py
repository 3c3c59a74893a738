"""Clips x questions on a seeded LLaVA-OneVision of about 60M parameters, beside transformers.

A program is one clip, of which eight frames are looked at, and ten questions of 16 tokens with
16 greedy tokens of answer each. mmserve is handed all programs at once. transformers decodes,
preprocesses and encodes a clip for each question, or for all questions of a clip in one batch.
Frames per second are those whose questions are answered, not those that were encoded again.

Beside that a job of the batch tool, in two orders: see `job_order`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.job_order import JobSizes, measure_orders, order_summary
from benchmarks.media_asks import Ask, Clip, OneStep, Writer
from benchmarks.media_lanes import Lane, MmserveLane, play, row_of, speedup
from benchmarks.media_reference import Reference, TransformersLane
from benchmarks.media_workers import open_others
from benchmarks.record import Record, report
from benchmarks.video_model import FRAME_TOKENS, VOCAB_SIZE, clip, frame_processor, onevision
from mmserve.core import EngineConfig, default_threads
from mmserve.engine import Engine

QUESTION_TOKENS = 16
ANSWER_TOKENS = 16
CLIP_S = 12

OURS = {"mmserve": "full", "mmserve, int8": "int8"}
"""Lanes of this engine, with the weights of each."""
ALONE, BATCHED = "transformers, one by one", "transformers, batch of a clip"
PARTS = ("programs", "job")


@dataclass(frozen=True, slots=True)
class Workload:
    """Programs of so many frames and questions each."""

    programs: Sequence[OneStep]
    num_frames: int
    num_questions: int

    @property
    def least_tokens(self) -> int:
        """Tokens that any engine must compute: a BOS, each clip and question once, answers."""
        clip_tokens = self.num_frames * FRAME_TOKENS + 1
        question_tokens = QUESTION_TOKENS + ANSWER_TOKENS - 1
        each = clip_tokens + self.num_questions * question_tokens
        return 1 + len(self.programs) * each


def workload(num_clips: int, num_frames: int, num_questions: int, seed: int = 0) -> Workload:
    """Clips of twelve seconds and questions of random words. Pure."""
    writer = Writer(VOCAB_SIZE, seed)
    programs = []
    for i in range(num_clips):
        shown = Clip(clip(CLIP_S, seed + i), num_frames)
        questions = writer.questions(num_questions, QUESTION_TOKENS)
        asks = [Ask(f"{i}-{j}", (shown, q), ANSWER_TOKENS) for j, q in enumerate(questions)]
        programs.append(OneStep(tuple(asks)))
    return Workload(programs, num_frames, num_questions)


def open_lanes(
    directory: Path, stack: ExitStack, baseline_clips: int | None
) -> tuple[list[Lane], list[dict[str, Any]]]:
    """Lanes that are ready, and rows of engines that are absent; `stack` closes them all."""
    lanes: list[Lane] = []
    for name, weights in OURS.items():
        engine = Engine.from_config(EngineConfig(model=str(directory), weights=weights))
        lanes.append(MmserveLane(name, stack.enter_context(engine)))
    reference = Reference(directory, frame_tokens=FRAME_TOKENS, processor=frame_processor())
    for name, batch_programs in ((ALONE, 0), (BATCHED, 1)):
        lanes.append(
            TransformersLane(
                name,
                reference,
                batch_programs=batch_programs,
                most_programs=baseline_clips,
            )
        )
    others, absent = open_others(directory, "video", stack)
    return [*lanes, *others], absent


def measure(
    directory: Path, work: Workload, repeats: int, baseline_clips: int | None
) -> Record:
    """Run all engines and compare."""
    torch.set_num_threads(default_threads())
    warming = [OneStep((Ask("warm", (Clip(clip(1, 999), 2), (300, 301)), 4),))]
    with ExitStack() as stack:
        lanes, absent = open_lanes(directory, stack, baseline_clips)
        _, failed_early = play(lanes, warming, 1)
        runs, failed = play(lanes, work.programs, repeats)
    expected = runs[ALONE][0]
    rows = [row_of(lane, runs[lane.name], len(work.programs), expected) for lane in lanes]
    for row in rows:
        row["frames_a_clip"] = work.num_frames
        row["frames_per_s"] = row["programs_per_s"] * work.num_frames
        row["questions_per_s"] = row["programs_per_s"] * work.num_questions
    summary = summary_of(rows, work)
    return Record(
        repeats=repeats, summary=summary, rows=[*rows, *absent, *failed_early, *failed]
    )


def summary_of(rows: Sequence[Mapping[str, Any]], work: Workload) -> dict[str, float]:
    """Our ways against transformers', and the least work. Pure."""
    table = {row["engine"]: row for row in rows}
    ours, eight = (table[name] for name in OURS)
    num_items = len(work.programs) * (work.num_frames + 1)  # a clip's end is an item, too
    return {
        "speedup_vs_transformers_sequential": speedup(ours, table[ALONE]),
        "speedup_vs_transformers_batched": speedup(ours, table[BATCHED]),
        "computed_over_least": ours["tokens_computed"] / work.least_tokens,
        "encoded_over_least": ours["items_encoded"] / num_items,
        "different_answers": ours["different_answers"],
        "frames_per_second": ours["frames_per_s"],
        "questions_per_second": ours["questions_per_s"],
        "speedup_vs_transformers_sequential_int8": speedup(eight, table[ALONE]),
        "questions_per_second_int8": eight["questions_per_s"],
        "different_answers_int8": eight["different_answers"],
    }


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument(
        "--quick", action="store_true", help="1 clip, 2 frames, 3 questions, one round"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--clips", type=int, default=4)
    parser.add_argument("--frames", type=int, default=8, help="of each clip")
    parser.add_argument("--questions", type=int, default=10, help="of each clip")
    parser.add_argument(
        "--baseline-clips",
        type=int,
        metavar="N",
        help="transformers sees only the first N, and its rows say so; default: all",
    )
    parser.add_argument("--job-clips", type=int, default=20, help="of the batch tool's job")
    parser.add_argument("--job-frames", type=int, default=4, help="of each of its clips")
    parser.add_argument("--job-questions", type=int, default=5, help="of each of its clips")
    parser.add_argument("--job-repeats", type=int, default=2, help="rounds of the job")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="not all")
    flags = parser.parse_args()
    report(_measured(flags), flags.json)


def _measured(flags: argparse.Namespace) -> Record:
    """The parts that are wanted, as one record."""
    sizes = (1, 2, 3) if flags.quick else (flags.clips, flags.frames, flags.questions)
    job = (4, 2, 2) if flags.quick else (flags.job_clips, flags.job_frames, flags.job_questions)
    repeats, job_repeats = (1, 1) if flags.quick else (flags.repeats, flags.job_repeats)
    rows: list[Mapping[str, Any]] = []
    summary: dict[str, float] = {}
    with TemporaryDirectory() as model, TemporaryDirectory() as folder:
        directory = onevision(Path(model))
        if "programs" in flags.parts:
            found = measure(directory, workload(*sizes), repeats, flags.baseline_clips)
            rows += found.rows
            summary |= found.summary
        if "job" in flags.parts:
            found_rows = measure_orders(directory, Path(folder), JobSizes(*job), job_repeats)
            rows += found_rows
            summary |= order_summary(found_rows)
    return Record(repeats=repeats, summary=summary, rows=rows)


if __name__ == "__main__":
    main()
