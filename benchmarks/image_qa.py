"""Pictures x questions on a seeded LLaVA of about 60M parameters, engines side by side.

A program is one picture and eight questions of 24 tokens, 16 greedy tokens each. mmserve is
handed all programs at once, with full weights and with int8 ones. transformers answers one
question at a time, all of a picture as one batch, and those of several pictures as one batch.
Other engines get all questions at once if they batch by themselves. All use the same threads,
prompts and lengths; nothing is cached before a run; they take turns, round by round, and
medians are told. A row with `programs_run` below `programs` has its rate from fewer pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines.export import checkpoint
from benchmarks.engines.worker import ENVIRONMENTS
from benchmarks.media_asks import Ask, OneStep, Picture, Writer
from benchmarks.media_lanes import Lane, MmserveLane, play, row_of, speedup
from benchmarks.media_reference import Reference, TransformersLane
from benchmarks.media_workers import open_others
from benchmarks.models import byte_tokenizer
from benchmarks.record import Record, report
from mmserve.core import EngineConfig, default_threads
from mmserve.engine import Engine

QUESTION_TOKENS = 24
ANSWER_TOKENS = 16
PICTURE_TOKENS = 576
PICTURE_SIDE = 336
VOCAB_SIZE = 32000
WARMING = 8
"""Tokens of an answer that is not timed."""

_OURS, _INT8, _ALONE = "mmserve", "mmserve, int8", "transformers, one by one"
_BATCHED = {"transformers, batch of a picture": 1, "transformers, batch of 4 pictures": 4}


@dataclass(frozen=True)
class Workload:
    """Seeded pictures (as PNG) and questions (as token ids)."""

    pictures: list[bytes]
    questions: list[list[tuple[int, ...]]]

    @property
    def num_programs(self) -> int:
        """Pictures."""
        return len(self.pictures)

    @property
    def programs(self) -> list[OneStep]:
        """A program a picture. Pure."""
        return [
            OneStep(
                tuple(
                    Ask(f"{i}-{j}", (Picture(picture), question), ANSWER_TOKENS)
                    for j, question in enumerate(self.questions[i])
                )
            )
            for i, picture in enumerate(self.pictures)
        ]

    @property
    def least_tokens(self) -> int:
        """Tokens that any engine must compute.

        One BOS, each picture with the line's end behind it and each question once, and all but
        the last token of each answer.
        """
        num_questions = sum(len(row) for row in self.questions)
        prompt = 1 + self.num_programs * (PICTURE_TOKENS + 1)
        prompt += num_questions * (QUESTION_TOKENS - 1)
        return prompt + num_questions * (ANSWER_TOKENS - 1)


def workload(num_pictures: int, num_questions: int, vocab_size: int, seed: int = 0) -> Workload:
    """Noise pictures of 336 x 336 and questions of random words in a line of their own. Pure.

    The line's end is there because OpenVINO writes one behind every picture.
    """
    writer = Writer(vocab_size, seed)
    pictures = [writer.picture(PICTURE_SIDE).content for _ in range(num_pictures)]
    (line_end,) = byte_tokenizer(vocab_size)("\n", add_special_tokens=False)["input_ids"]
    questions = [
        [(line_end, *words) for words in writer.questions(num_questions, QUESTION_TOKENS - 1)]
        for _ in pictures
    ]
    return Workload(pictures, questions)


def open_lanes(
    directory: Path, stack: ExitStack, baseline_pictures: int | None, *, has_others: bool
) -> tuple[list[Lane], list[dict[str, Any]]]:
    """Lanes that are ready, and rows of engines that are absent; `stack` closes them all."""
    config = EngineConfig(model=str(directory))
    engines = {_OURS: config, _INT8: replace(config, weights="int8")}
    lanes: list[Lane] = [
        MmserveLane(name, stack.enter_context(Engine.from_config(one)))
        for name, one in engines.items()
    ]
    reference = Reference(directory, picture_tokens=PICTURE_TOKENS)
    for name, batch_programs in {_ALONE: 0, **_BATCHED}.items():
        lanes.append(
            TransformersLane(
                name,
                reference,
                batch_programs=batch_programs,
                most_programs=baseline_pictures,
            )
        )
    if not has_others:
        return lanes, []
    others, absent = open_others(directory, "image", stack)
    return [*lanes, *others], absent


def measure(
    directory: Path,
    work: Workload,
    repeats: int,
    *,
    baseline_pictures: int | None = None,
    has_others: bool = True,
) -> Record:
    """Run all engines and compare."""
    torch.set_num_threads(default_threads())
    with ExitStack() as stack:
        lanes, absent = open_lanes(directory, stack, baseline_pictures, has_others=has_others)
        _, failed_early = play(lanes, warming(work), 1)
        runs, failed = play(lanes, work.programs, repeats)
    expected = runs[_ALONE][0]
    rows = [row_of(lane, runs[lane.name], work.num_programs, expected) for lane in lanes]
    return Record(
        repeats=repeats,
        summary=summary_of(rows, work),
        rows=[*rows, *absent, *failed_early, *failed],
    )


def warming(work: Workload) -> list[OneStep]:
    """A short program that is not timed. Pure."""
    return [OneStep((Ask("warm", (Picture(work.pictures[0]), (300, 301)), WARMING),))]


def summary_of(rows: Sequence[dict[str, Any]], work: Workload) -> dict[str, float]:
    """What targets name: our two ways against the best of each kind of others. Pure."""
    table = {row["engine"]: row for row in rows}
    ours, eight, alone = table[_OURS], table[_INT8], table[_ALONE]
    batch = max((table[name] for name in _BATCHED), key=lambda row: row["programs_per_s"])
    others = [row for row in rows if row["engine"] not in {_OURS, _INT8, _ALONE, *_BATCHED}]
    found = {
        "speedup_vs_transformers_sequential": speedup(ours, alone),
        "speedup_vs_transformers_batched": speedup(ours, batch),
        "computed_over_least": ours["tokens_computed"] / work.least_tokens,
        "different_answers": ours["different_answers"],
        "programs_per_second": ours["programs_per_s"],
        "programs_per_second_int8": eight["programs_per_s"],
        "speedup_vs_transformers_sequential_int8": speedup(eight, alone),
        "speedup_vs_transformers_batched_int8": speedup(eight, batch),
        "different_answers_int8": eight["different_answers"],
        "computed_over_least_int8": eight["tokens_computed"] / work.least_tokens,
        "other_engines": len(others),
    }
    if others:
        best = max(others, key=lambda row: row["programs_per_s"])
        found["over_best_other_engine"] = speedup(ours, best)
        found["over_best_other_engine_int8"] = speedup(eight, best)
    return found


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument(
        "--quick", action="store_true", help="2 pictures, 1 for transformers, one round"
    )
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--pictures", type=int, default=16)
    parser.add_argument(
        "--baseline-pictures",
        type=int,
        metavar="N",
        help="transformers sees only the first N, and its rows say so; default: all",
    )
    parser.add_argument("--no-others", action="store_true", help="only mmserve, transformers")
    flags = parser.parse_args()
    num_pictures, repeats = (2, 1) if flags.quick else (flags.pictures, flags.repeats)
    baseline_pictures = flags.baseline_pictures or (1 if flags.quick else None)
    record = measure(
        checkpoint("llava-60m", ENVIRONMENTS / "models"),
        workload(num_pictures, 8, VOCAB_SIZE),
        repeats,
        baseline_pictures=baseline_pictures,
        has_others=not (flags.quick or flags.no_others),
    )
    report(record, flags.json)


if __name__ == "__main__":
    main()
