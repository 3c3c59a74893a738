"""What constraints cost: masks, compiling, and a constrained batch against a free one.

    masks     random answers under patterns, options and schemas, on the 49,152 tokens of
              SmolLM2: processor time of each mask, the first answer of a constraint included
    compile   a constraint to a matcher, in wall time; refused ones are counted apart
    batch     16 rows under grammars that force nothing against 16 rows without

With `--others PYTHON`, the interpreter of an environment that has them, xgrammar and
outlines-core compile the same constraints and follow the same answers in the same run; of the
schemas, which come in a random order, as many as there is time for.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.constrained_batch import measure_batch
from benchmarks.constraint_cases import Case, mask_cases, own_schemas, read_schemas
from benchmarks.constraint_others import OTHERS, OtherEngine
from benchmarks.constraint_walks import OURS, Timed, Tokens, percentiles, time_case
from benchmarks.record import Record, report

MODELS = ("smollm2-135m", "tabletop")
NUM_ROWS = 16


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured; `limit_s` and `budget_s` bound other engines only."""

    num_walks: int = 5
    num_tokens: int = 64
    repeats: int = 5
    schemas_every: int = 1
    limit_s: float = 15.0
    budget_s: float = 240.0


QUICK = Size(num_walks=3, num_tokens=24, repeats=1, schemas_every=6, limit_s=3.0, budget_s=20.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRecord(Record):
    """A record that says which engines there were, and what each of them refused and why."""

    engines: Mapping[str, str]
    refused: Mapping[str, Mapping[str, str]]


# Masks and compiling, ours and others


def measure_ours(
    tokens: Tokens, masks: Sequence[Case], schemas: Sequence[Case], num_walks: int
) -> tuple[list[Timed], list[list[list[int]]], list[Timed]]:
    """Of our engine: mask cases with their answers' tokens, and compiled schemas."""
    compiler = tokens.compiler()
    pairs = [time_case(compiler, tokens, case, num_walks) for case in masks]
    compiled = [time_case(compiler, tokens, case, 0)[0] for case in schemas]
    return [timed for timed, _ in pairs], [walks for _, walks in pairs], compiled


def measure_other(
    engine: OtherEngine,
    masks: Sequence[Case],
    walks: Sequence[Sequence[Sequence[int]]],
    schemas: Sequence[Case],
    budget_s: float,
) -> tuple[list[Timed], list[Timed]]:
    """The same of another engine; of the schemas, as many as there is time for."""
    timed = [engine.time_case(*pair) for pair in zip(masks, walks, strict=True)]
    deadline = time.monotonic() + budget_s
    compiled = []
    for case in schemas:
        if time.monotonic() > deadline:
            break
        compiled.append(engine.time_case(case, []))
    return timed, compiled


def mask_rows(engine: str, timed: Sequence[Timed]) -> Iterator[dict[str, Any]]:
    """A row for each kind of constraint, and one for all of them. Pure."""
    kinds = list(dict.fromkeys(one.kind for one in timed))
    for kind in (*kinds, "all"):
        here = [one for one in timed if kind in (one.kind, "all")]
        walks = [walk for one in here for walk in one.walks]
        first = [one.walks[0] for one in here if one.walks]
        yield {
            "table": "masks",
            "engine": engine,
            "kind": kind,
            "constraints": len(here),
            "refused": sum(one.refusal is not None for one in here),
            "masks": sum(len(walk.mask_us) for walk in walks),
            "stuck": sum(walk.is_stuck for walk in walks),
            **percentiles((us for walk in walks for us in walk.mask_us), "mask", "us"),
            **percentiles((us for walk in first for us in walk.mask_us), "cold_mask", "us"),
            **percentiles((us for walk in walks for us in walk.accept_us), "accept", "us"),
            **percentiles((us for walk in walks for us in walk.jump_us), "jump", "us"),
            **percentiles((one.compile_ms for one in here if one.walks), "compile", "ms"),
        }


def compile_row(engine: str, timed: Sequence[Timed], num_asked: int) -> dict[str, Any]:
    """One row. Pure."""
    taken = [one for one in timed if one.refusal is None]
    return {
        "table": "compile",
        "engine": engine,
        "constraints": num_asked,
        "tried": len(timed),
        "refused": len(timed) - len(taken),
        **percentiles((one.compile_ms for one in taken), "compile", "ms"),
        **percentiles((one.processor_ms for one in taken), "processor", "ms"),
        **percentiles((one.first_mask_ms for one in taken), "first_mask", "ms"),
    }


def slowest_rows(timed: Sequence[Timed], count: int = 5) -> Iterator[dict[str, Any]]:
    """The constraints with our slowest masks. Pure."""

    def worst(one: Timed) -> float:
        return max((us for walk in one.walks for us in walk.mask_us), default=0.0)

    for one in sorted(timed, key=worst, reverse=True)[:count]:
        masks = (us for walk in one.walks for us in walk.mask_us)
        yield {
            "table": "slowest",
            "engine": OURS,
            "kind": one.kind,
            "grammar": one.name,
            **percentiles(masks, "mask", "us"),
        }


def refusals(timed: Sequence[Timed]) -> dict[str, str]:
    """Reason by constraint. Pure."""
    return {one.name: one.refusal for one in timed if one.refusal is not None}


# All of it


def measure(
    tokens: Tokens,
    size: Size,
    *,
    models: Sequence[str] = MODELS,
    data: Path | None = None,
    python: str | None = None,
    threads: int | None = None,
) -> CostRecord:
    """Every table."""
    masks = mask_cases()
    schemas = own_schemas() if data is None else read_schemas(data, size.schemas_every)
    timed, walks, compiled = measure_ours(tokens, masks, schemas, size.num_walks)
    rows = [*mask_rows(OURS, timed), compile_row(OURS, compiled, len(schemas))]
    engines = {OURS: "this checkout"}
    refused = {OURS: refusals((*timed, *compiled))}
    if python is None:
        print("xgrammar and outlines-core are left out: no --others", file=sys.stderr)
    for name in OTHERS if python is not None else ():
        with OtherEngine(str(python), name, tokens, size.limit_s) as engine:
            found = measure_other(engine, masks, walks, schemas, size.budget_s)
            engines[name] = engine.version
        refused[name] = refusals((*found[0], *found[1]))
        rows += [*mask_rows(name, found[0]), compile_row(name, found[1], len(schemas))]
    rows += slowest_rows(timed)
    for model in models:
        rows += measure_batch(
            model,
            num_rows=NUM_ROWS,
            num_tokens=size.num_tokens,
            repeats=size.repeats,
            threads=threads,
        )
    return CostRecord(
        repeats=size.repeats,
        summary=summarise(rows, models),
        rows=rows,
        engines=engines,
        refused=refused,
    )


def summarise(rows: Sequence[Mapping[str, Any]], models: Sequence[str]) -> dict[str, float]:
    """Our costs over all constraints, the lowest step rate, and costs of others. Pure."""
    summary: dict[str, float] = {}
    for row in rows:
        prefix = "" if row.get("engine") == OURS else f"{row.get('engine')}_"
        if row["table"] == "masks" and row["kind"] == "all":
            names = ("mask_p50_us", "mask_p99_us")
        elif row["table"] == "compile":
            names = ("compile_p50_ms", "compile_p99_ms")
        else:
            continue
        summary |= {prefix + name: row[name] for name in names if name in row}
    batches = [row for row in rows if row["table"] == "batch"]
    if batches:
        summary["step_rate_ratio"] = min(row["step_rate_ratio"] for row in batches)
    for model in models:
        ratios = [row["step_rate_ratio"] for row in batches if row["model"] == model]
        summary[f"mean_step_rate_ratio_{model}"] = geometric_mean(ratios)
    return summary


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="fewer answers, one round")
    parser.add_argument("--repeats", type=int, default=Size().repeats, help="rounds of batches")
    parser.add_argument("--data", metavar="FILE", type=Path, help="schemas, as JSON lines")
    parser.add_argument("--others", metavar="PYTHON", help="interpreter that has the others")
    parser.add_argument("--models", nargs="*", default=MODELS, help="of the batches")
    parser.add_argument("--vocabulary", default=MODELS[0], help="model whose tokens are masked")
    flags = parser.parse_args()
    size = QUICK if flags.quick else Size(repeats=flags.repeats)
    record = measure(
        Tokens(flags.vocabulary),
        size,
        models=flags.models,
        data=flags.data,
        python=flags.others,
    )
    report(record, flags.json)


if __name__ == "__main__":
    main()
