"""Prompts that share pictures in four ways: mmserve, itself without reuse, and transformers.

The families are drawn in `picture_programs`: a grid of questions over pictures, forks on a
picture, chats that grow by pictures, and the same pictures at other places of many users'
prompts. Every family starts from empty caches; engines take turns, round by round. Tokens
computed and pictures encoded stand beside the least that any engine must do. Without reuse
means no cache and a salt for every request. transformers answers one prompt at a time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.media_asks import Ask, OneStep, Writer
from benchmarks.media_lanes import Lane, MmserveLane, Runs, play, row_of, speedup
from benchmarks.media_reference import Reference, TransformersLane
from benchmarks.models import llava_60m
from benchmarks.picture_family_plot import plot
from benchmarks.picture_programs import FAMILIES, Sizes, Work, family
from benchmarks.record import Record, report
from mmserve.core import EngineConfig, SchedConfig, default_threads
from mmserve.engine import Engine

OURS, NOTHING_SHARED, REFERENCE = "mmserve", "mmserve, nothing shared", "transformers"


def open_lanes(
    directory: Path, sizes: Sizes, most_programs: int | None, stack: ExitStack
) -> list[Lane]:
    """The three lanes; `stack` closes the engines."""
    name = str(directory)
    shared = Engine.from_config(EngineConfig(model=name))
    alone = Engine.from_config(EngineConfig(model=name, sched=SchedConfig(radix_cache=False)))
    return [
        MmserveLane(OURS, stack.enter_context(shared)),
        MmserveLane(NOTHING_SHARED, stack.enter_context(alone), is_shared=False),
        TransformersLane(
            REFERENCE,
            Reference(directory, picture_tokens=sizes.picture),
            most_programs=most_programs,
        ),
    ]


def family_rows(work: Work, lanes: Sequence[Lane], runs: Runs) -> list[dict[str, Any]]:
    """A row a lane, with the least that is possible for the programs that it ran. Pure."""
    expected = runs[REFERENCE][0]
    rows = []
    for lane in lanes:
        row = row_of(lane, runs[lane.name], len(work.programs), expected)
        is_whole = row["programs_run"] == len(work.programs)
        row |= {
            "family": work.name,
            "prompts": work.num_asks,
            "least_tokens": work.least_tokens,
            "least_encodes": work.least_encodes,
        }
        if is_whole:  # else tokens are those of fewer programs
            row["computed_over_least"] = row["tokens_computed"] / work.least_tokens
            row["encoded_over_least"] = row["items_encoded"] / work.least_encodes
        rows.append(row)
    return rows


def summary_of(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Each family against transformers, against itself without reuse, and the least. Pure."""
    table = {(row["family"], row["engine"]): row for row in rows}
    names = list(dict.fromkeys(row["family"] for row in rows))
    found = {}
    for name in names:
        ours = table[name, OURS]
        found[f"{name}_speedup_vs_transformers"] = speedup(ours, table[name, REFERENCE])
        found[f"{name}_speedup_vs_nothing_shared"] = speedup(ours, table[name, NOTHING_SHARED])
        found[f"{name}_computed_over_least"] = ours["computed_over_least"]
        found[f"{name}_encoded_over_least"] = ours["encoded_over_least"]
    ours = [table[name, OURS] for name in names]
    return {
        "min_speedup_vs_transformers": min(
            found[f"{name}_speedup_vs_transformers"] for name in names
        ),
        "max_computed_over_least": max(row["computed_over_least"] for row in ours),
        "max_encoded_over_least": max(row["encoded_over_least"] for row in ours),
        "different_answers": sum(row["different_answers"] for row in ours),
        **found,
    }


def measure(
    directory: Path, works: Sequence[Work], sizes: Sizes, repeats: int, most: int | None
) -> Record:
    """All families on all lanes."""
    torch.set_num_threads(default_threads())
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        lanes = open_lanes(directory, sizes, most, stack)
        writer = Writer(sizes.vocab, 1)
        picture = writer.picture(sizes.side_pixels)
        warming = [OneStep((Ask("warm", (picture, writer.words(4)), 4),))]
        for lane in lanes:
            lane.run(warming)
        for work in works:
            runs, _ = play(lanes, work.programs, repeats)
            rows += family_rows(work, lanes, runs)
    return Record(repeats=repeats, summary=summary_of(rows), rows=rows)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument("--quick", action="store_true", help="the least programs, one round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument(
        "--size", type=int, default=3, help="programs, as multiple of the least"
    )
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument(
        "--baseline-programs",
        type=int,
        metavar="N",
        help="transformers runs only the first N programs of a family; default: all",
    )
    flags = parser.parse_args()
    size, repeats = (1, 1) if flags.quick else (flags.size, flags.repeats)
    sizes = Sizes()
    works = [family(name, size, sizes) for name in flags.families]
    with TemporaryDirectory() as folder:
        directory = llava_60m(Path(folder))
        record = measure(directory, works, sizes, repeats, flags.baseline_programs)
    report(record, flags.json)
    if flags.plot is not None:
        plot(record.rows, flags.plot)


if __name__ == "__main__":
    main()
