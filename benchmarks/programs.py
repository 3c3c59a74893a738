"""Programs of the SGLang paper's kinds: the full system, each part removed, and transformers.

All rows of a workload go to `run_batch` at once, and the cache is empty before each run. In a
round every configuration runs a workload once (slow ones in every second round), each round
begins with another one, and medians are told. transformers gets the same Python bodies and the
same prompts, and answers one call at a time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

from benchmarks.program_ablation import CONFIGURATIONS, QUICK, Configuration, open_engine
from benchmarks.program_effects import Runs, effects_of, row_of, summarise
from benchmarks.program_lanes import REFERENCE, Lane
from benchmarks.program_model import MODEL_NAME, program_llava
from benchmarks.program_plot import plot
from benchmarks.program_reference import TransformersBackend, TransformersClient
from benchmarks.program_workloads import SEED, WORKLOADS, Workload, workloads
from benchmarks.record import Record, report
from mmserve.core import default_threads

_WARMING = ("judge", "json", "clip_questions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord(Record):
    """A record with what each part does to each workload, and under which conditions."""

    effects: Sequence[dict[str, Any]]
    conditions: dict[str, Any]


def open_lanes(
    directory: Path, configurations: Sequence[Configuration], stack: ExitStack
) -> list[Lane]:
    """A lane for each configuration and one for transformers; `stack` closes the engines."""
    engines: dict[object, tuple[Any, Any]] = {}
    lanes = []
    for configuration in configurations:
        key = configuration.engine_key
        if key not in engines:
            engines[key] = open_engine(str(directory), configuration)
            stack.enter_context(engines[key][0])
        engine, parts = engines[key]
        lanes.append(
            Lane(
                configuration.name,
                configuration.backend(engine, parts),
                engine,
                configuration.run,
                is_compiled=configuration.is_compiled,
                is_slow=configuration.is_slow,
            )
        )
    client = TransformersClient(next(iter(engines.values()))[1], directory)
    backend = TransformersBackend(client)
    lanes.append(Lane(REFERENCE, backend, client, {"num_threads": 1}, is_slow=True))
    return lanes


def compare(work: Workload, lanes: Sequence[Lane], repeats: int) -> Runs:
    """All runs of one workload, by lane and round."""
    runs: Runs = {lane.name: {} for lane in lanes}
    for number in range(repeats):
        first = number * 5 % len(lanes)
        for lane in (*lanes[first:], *lanes[:first]):
            if number % 2 == 0 or not lane.is_slow:
                runs[lane.name][number] = lane.run(work)
    return runs


def measure(
    directory: Path,
    work: Sequence[Workload],
    configurations: Sequence[Configuration],
    repeats: int,
    conditions: dict[str, Any],
) -> ProgramRecord:
    """All workloads on these configurations and on transformers."""
    torch.set_num_threads(default_threads())
    rows: list[dict[str, Any]] = []
    effects: list[dict[str, Any]] = []
    with ExitStack() as stack:
        lanes = open_lanes(directory, configurations, stack)
        for some in workloads(_WARMING, 1):
            for lane in lanes:
                lane.run(some)
        for some in work:
            runs = compare(some, lanes, repeats)
            expected = runs[REFERENCE][0].answers
            rows += [row_of(some, name, done, expected) for name, done in runs.items()]
            effects += effects_of(some.name, runs)
            total = sum(run.seconds for done in runs.values() for run in done.values())
            print(f"{some.name}: {total:.0f} s", file=sys.stderr)
    return ProgramRecord(
        repeats=repeats,
        summary=summarise(rows, effects),
        rows=rows,
        effects=effects,
        conditions=conditions,
    )


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument(
        "--quick", action="store_true", help="the least rows, one round, nothing tight"
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument("--size", type=int, default=3, help="rows, in multiples of the least")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=WORKLOADS)
    flags = parser.parse_args()
    size, repeats = (1, 1) if flags.quick else (flags.size, flags.repeats)
    configurations = QUICK if flags.quick else CONFIGURATIONS
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    conditions = {
        "model": MODEL_NAME,
        "seed_of_weights": 0,
        "seed_of_texts": SEED,
        "size": size,
        "threads": default_threads(),
        "slots": {one.name: one.num_slots for one in configurations},
    }
    with TemporaryDirectory() as folder:
        work = workloads(flags.workloads, size)
        record = measure(program_llava(Path(folder)), work, configurations, repeats, conditions)
    report(record, flags.json)
    if flags.plot is not None:
        plot(record.rows, flags.plot)


if __name__ == "__main__":
    main()
