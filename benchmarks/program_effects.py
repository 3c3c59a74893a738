"""From runs to what is told: a row a configuration, the effect of each part, the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from benchmarks.program_ablation import PARTS
from benchmarks.program_lanes import REFERENCE, Run
from benchmarks.program_workloads import Workload

__all__ = ["NIL", "Runs", "effects_of", "row_of", "summarise"]

NIL = 0.05
"""Effects on programs per second below this share are nil, whatever their rounds say."""

Runs = dict[str, dict[int, Run]]
Answers = tuple[tuple[str, ...], ...]


def row_of(
    work: Workload, name: str, done: Mapping[int, Run], expected: Answers
) -> dict[str, Any]:
    """Medians of one configuration; `expected` are transformers' answers. Pure."""
    runs = list(done.values())
    seconds = median(run.seconds for run in runs)
    computed = round(median(run.prompt_computed for run in runs))
    cached = round(median(run.prompt_cached for run in runs))
    texts = [text for row in runs[-1].answers for text in row]
    expected_texts = [text for row in expected for text in row]
    return {
        "workload": work.name,
        "configuration": name,
        "programs": work.num_programs,
        "rounds": len(runs),
        "seconds": seconds,
        "slowest_over_fastest": max(run.seconds for run in runs)
        / min(run.seconds for run in runs),
        "programs_per_s": work.num_programs / seconds,
        "prompt_tokens_computed": computed,
        "tokens_generated": runs[-1].generated,
        "tokens_computed": computed + runs[-1].generated,
        "hit_rate": cached / max(1, cached + computed),
        "answers": len(texts),
        "answers_as_transformers": sum(
            one == other for one, other in zip(texts, expected_texts, strict=True)
        ),
    }


def effects_of(workload: str, runs: Runs) -> list[dict[str, Any]]:
    """What each part does to one workload: with it over without it, round by round.

    An effect is nil if it is small, or if rounds disagree whether the part helps; one round
    alone cannot say. Pure.
    """
    found = []
    for part, (with_it, without) in PARTS.items():
        if with_it not in runs or without not in runs:
            continue
        ours, theirs = runs[with_it], runs[without]
        ratios = [theirs[at].seconds / ours[at].seconds for at in ours if at in theirs]
        found.append(
            {
                "workload": workload,
                "part": part,
                "speed": median(ratios),
                "speed_least": min(ratios),
                "speed_most": max(ratios),
                "tokens_saved": 1 - _tokens(ours) / _tokens(theirs),
                "effect": _word(ratios),
            }
        )
    return found


def _word(ratios: Sequence[float]) -> str:
    if len(ratios) < 2:
        return "unsure"
    if min(ratios) <= 1 <= max(ratios) or abs(median(ratios) - 1) < NIL:
        return "nil"
    return "faster" if median(ratios) > 1 else "slower"


def _tokens(runs: Mapping[int, Run]) -> float:
    return median(run.prompt_computed + run.generated for run in runs.values())


def summarise(
    rows: Sequence[Mapping[str, Any]], effects: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    """The worst speedup against transformers, and each part over all workloads. Pure."""
    speed = {(row["workload"], row["configuration"]): row["programs_per_s"] for row in rows}
    names = dict.fromkeys(row["workload"] for row in rows)
    speedups = [speed[name, "full"] / speed[name, REFERENCE] for name in names]
    full = [row for row in rows if row["configuration"] == "full"]
    num_same = sum(row["answers_as_transformers"] for row in full)
    summary = {
        "min_speedup_vs_transformers": min(speedups),
        "mean_speedup_vs_transformers": geometric_mean(speedups),
        "max_speedup_vs_transformers": max(speedups),
        "answers_unlike_transformers": sum(row["answers"] for row in full) - num_same,
    }
    for part in dict.fromkeys(effect["part"] for effect in effects):
        its = [effect for effect in effects if effect["part"] == part]
        summary[f"{part}_speed"] = geometric_mean(effect["speed"] for effect in its)
        summary[f"{part}_tokens_saved"] = sum(e["tokens_saved"] for e in its) / len(its)
        for word in ("faster", "nil", "slower"):
            summary[f"{part}_{word}"] = sum(effect["effect"] == word for effect in its)
    return summary
