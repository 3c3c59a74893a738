"""Records of fixed keys and short values: text that is forced computed at once, or drawn.

    jump        what the grammar forces is appended and computed in one row
    no jump     every token is drawn in a step of its own
    no reuse    as jump, and every request compiles its grammar anew

The record is asked for by regex and by schema, greedily, one answer after another and 16 at
once, of a text model and of one that sees pictures, with a picture in front and without. In a
round every lane answers the same requests once, each round begins with another lane, the cache
is empty before each run, and medians are told. `processor_speedup` is the same of processor
time, which neighbours on the machine disturb less. Every answer is validated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import torch

from benchmarks.character import CONSTRAINTS, is_valid, requests
from benchmarks.json_jump_plot import plot
from benchmarks.record import Record, report
from mmserve.core import EngineConfig, Request, SchedConfig, default_threads
from mmserve.engine import Engine, collect

MODELS = ("smollm2-135m", "tabletop")
BATCHES = (1, 16)
NUM_SLOTS = 16_384
_FLUSH_S = 30.0

LANES: Mapping[str, Mapping[str, Any]] = {
    "jump": {"sched": SchedConfig(jump_forward=True)},
    "no jump": {"sched": SchedConfig(jump_forward=False)},
    "no reuse": {"sched": SchedConfig(jump_forward=True), "grammar_cache_bytes": 0},
}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is run: answers for each batch, and rounds."""

    answers: Mapping[int, int]
    repeats: int


@dataclass(frozen=True, slots=True)
class Run:
    """One lane's answers to all requests of a variant. Counts are over all of them."""

    seconds: float
    processor_s: float
    texts: tuple[str, ...]
    num_tokens: int
    num_forced: int
    num_jumps: int
    num_steps: int


@dataclass(frozen=True, slots=True)
class Variant:
    """What is asked for, of which model, and how many at once."""

    model: str
    has_picture: bool
    kind: str
    batch: int


def answer(engine: Engine, asked: Sequence[Request], batch: int) -> Run:
    """All requests, `batch` of them at once, from an empty cache. Raises what fails."""
    if not engine.flush_cache(_FLUSH_S):
        raise RuntimeError("the engine is still busy")
    before = engine.counters()
    start, started = time.perf_counter(), time.process_time()
    answers = []
    for first in range(0, len(asked), batch):
        tickets = [engine.submit(request) for request in asked[first : first + batch]]
        answers += [collect(ticket.outputs()) for ticket in tickets]
    seconds, processor_s = time.perf_counter() - start, time.process_time() - started
    after = engine.counters()
    jumps, steps = (
        int(after.get(name, 0) - before.get(name, 0)) for name in ("jumps_total", "steps_total")
    )
    return Run(
        seconds=seconds,
        processor_s=processor_s,
        texts=tuple(one.text for one in answers),
        num_tokens=sum(one.usage.completion_tokens for one in answers),
        num_forced=sum(one.usage.forced_tokens for one in answers),
        num_jumps=jumps,
        num_steps=steps,
    )


def compare(engines: Mapping[str, Engine], variant: Variant, size: Size) -> dict[str, Any]:
    """All rounds of one variant, as a row."""
    asked = requests(variant.kind, size.answers[variant.batch], has_picture=variant.has_picture)
    runs: dict[str, list[Run]] = {lane: [] for lane in engines}
    for engine in engines.values():
        answer(engine, asked[:1], 1)
    for number in range(size.repeats):
        lanes = list(engines)
        first = number % len(lanes)
        for lane in (*lanes[first:], *lanes[:first]):
            runs[lane].append(answer(engines[lane], asked, variant.batch))
    return _row(variant, runs)


def _row(variant: Variant, runs: Mapping[str, Sequence[Run]]) -> dict[str, Any]:
    seconds = {lane: median(run.seconds for run in done) for lane, done in runs.items()}
    processor_s = {lane: median(run.processor_s for run in done) for lane, done in runs.items()}
    jump, plain = runs["jump"][0], runs["no jump"][0]
    count = len(jump.texts)
    groups = -(-count // variant.batch)
    texts = [text for done in runs.values() for run in done for text in run.texts]
    return {
        "model": variant.model,
        "picture": variant.has_picture,
        "kind": variant.kind,
        "batch": variant.batch,
        "answers": count,
        "speedup": seconds["no jump"] / seconds["jump"],
        "processor_speedup": processor_s["no jump"] / processor_s["jump"],
        "answers_per_s": count / seconds["jump"],
        "answers_per_s_without": count / seconds["no jump"],
        "tokens_per_s": jump.num_tokens / seconds["jump"],
        "tokens_per_s_without": plain.num_tokens / seconds["no jump"],
        "tokens": jump.num_tokens,
        "tokens_without": plain.num_tokens,
        "forced_tokens": jump.num_forced,
        "jumps_per_answer": jump.num_jumps / count,
        "steps": jump.num_steps / groups,
        "steps_without": plain.num_steps / groups,
        "reuse_gain": seconds["no reuse"] / seconds["jump"],
        "different": sum(a != b for a, b in zip(jump.texts, plain.texts, strict=True)),
        "invalid": sum(not is_valid(variant.kind, text) for text in texts),
    }


def measure_model(model: str, size: Size, threads: int) -> list[dict[str, Any]]:
    """Rows of one model: with pictures and without, by regex and by schema, by batch."""
    rows = []
    with ExitStack() as stack:
        engines = {
            lane: stack.enter_context(
                Engine.from_config(
                    EngineConfig(model=model, num_slots=NUM_SLOTS, threads=threads, **settings)
                )
            )
            for lane, settings in LANES.items()
        }
        has_images = engines["jump"].model.has_images
        for has_picture in (False, True) if has_images else (False,):
            for kind in CONSTRAINTS:
                for batch in size.answers:
                    variant = Variant(model, has_picture, kind, batch)
                    rows.append(compare(engines, variant, size))
                    _tell(rows[-1])
    return rows


def _tell(row: Mapping[str, Any]) -> None:
    picture = "picture" if row["picture"] else "text"
    where = f"{row['model']}, {picture}, {row['kind']}, {row['batch']} at once"
    print(f"{where}: {row['speedup']:.2f}", file=sys.stderr)


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The mean over all variants (geometric), and sums over all answers. Pure."""

    def mean(name: str, some: Iterable[Mapping[str, Any]]) -> float:
        return geometric_mean([row[name] for row in some])

    def total(name: str) -> int:
        return sum(row[name] for row in rows)

    return {
        **{
            f"speedup_{kind}": mean("speedup", (row for row in rows if row["kind"] == kind))
            for kind in CONSTRAINTS
        },
        "forced_share": total("forced_tokens") / total("tokens"),
        "steps_saved": 1 - mean("steps", rows) / mean("steps_without", rows),
        "reuse_gain": mean("reuse_gain", rows),
        "num_answers": total("answers"),
        "num_different": total("different"),
        "num_invalid": total("invalid"),
    }


def measure(models: Sequence[str], size: Size, threads: int | None = None) -> Record:
    """All variants of some models."""
    threads = threads or default_threads()
    torch.set_num_threads(threads)
    rows = [row for model in models for row in measure_model(model, size, threads)]
    return Record(repeats=size.repeats, summary=summarise(rows), rows=rows)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument("--quick", action="store_true", help="fewer answers, one round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--models", nargs="+", default=MODELS, help="names or directories")
    flags = parser.parse_args()
    size = Size({1: 8, 16: 16}, flags.repeats)
    if flags.quick:
        size = Size({1: 2, 16: 16}, 1)
    record = measure(flags.models, size)
    report(record, flags.json)
    if flags.plot is not None:
        plot(record.rows, flags.plot)


if __name__ == "__main__":
    main()
