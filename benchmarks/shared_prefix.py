"""64 requests on one prefix of 512 tokens: SmolLM2-135M, every engine that runs here.

Each request is the prefix, 16 tokens of its own and 32 greedy tokens of answer. An engine that
batches is handed all requests at once, the others answer one after the other; caches are empty
before every run. Engines that are far slower answer fewer requests, and say how many: theirs do
not depend on one another, so that their rate is that of any number.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.ceilings import CeilingMeter, ceiling_rows
from benchmarks.engines import Job
from benchmarks.record import Record, report
from benchmarks.report_sections import is_ours
from benchmarks.text_lanes import (
    LANES,
    LaneSpec,
    Outcome,
    Prompter,
    TextLane,
    absent_rows,
    differences,
    lanes_named,
    open_lanes,
    play,
    smollm2,
    warm,
)
from mmserve.core import default_threads

__all__ = ["Plan", "measure", "requests", "row_of", "summarise"]

_OURS = {"full": "mmserve", "int8": "mmserve, int8"}
_EXPECTED = ("transformers", "transformers, batched", "mmserve")
"""The reference is the first of these that has run."""
_MOST = {"transformers": 8, "transformers, batched": 16}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured; `most` bounds the requests of a lane by name."""

    num_requests: int
    prefix_tokens: int
    own_tokens: int
    answer_tokens: int
    repeats: int
    most: Mapping[str, int]


FULL = Plan(64, 512, 16, 32, repeats=5, most=_MOST)
QUICK = Plan(16, 256, 16, 8, repeats=1, most={"transformers": 1, "transformers, batched": 4})


def requests(prompter: Prompter, plan: Plan) -> list[Job]:
    """All requests; no two go on alike behind the prefix. Changes: the prompter."""
    prefix = prompter.words(plan.prefix_tokens)
    owns: dict[int, tuple[int, ...]] = {}
    while len(owns) < plan.num_requests:
        own = prompter.words(plan.own_tokens)
        owns.setdefault(own[0], own)
    return [
        prompter.job(str(number), (*prefix, *own), plan.answer_tokens)
        for number, own in enumerate(owns.values())
    ]


def row_of(
    spec: LaneSpec, outcomes: Sequence[Outcome], expected: Outcome | None
) -> dict[str, Any]:
    """Medians of a lane. Pure."""
    rates = [len(one.answers) / one.seconds for one in outcomes]
    last = outcomes[-1]
    firsts = [one.first_token_s for one in last.answers.values()]
    known = [one for one in firsts if one is not None]
    num_different, num_compared = (
        (0, 0) if expected is None else differences(last.answers, expected.answers)
    )
    return {
        "engine": spec.name,
        "bits": "fp32" if spec.bits == "full" else spec.bits,
        "requests": len(last.answers),
        "rounds": len(outcomes),
        "requests_per_s": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
        "answer_tokens_per_s": statistics.median(
            one.num_tokens / one.seconds for one in outcomes
        ),
        "median_first_token_s": statistics.median(known) if known else "",
        "different_answers": num_different,
        "answers_compared": num_compared,
        "busy_elsewhere_cores": round(
            statistics.median(one.elsewhere_cores for one in outcomes), 2
        ),
    }


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Our rate, and over the best other engine at the same bits. Pure."""
    rates = {row["engine"]: row["requests_per_s"] for row in rows if "requests_per_s" in row}
    found = {row["engine"]: row for row in rows}
    named: dict[str, float] = {}
    for bits, ours in _OURS.items():
        if ours not in rates:
            continue
        suffix = "" if bits == "full" else f"_{bits}"
        named[f"requests_per_second{suffix}"] = rates[ours]
        others = {
            name: rate
            for name, rate in rates.items()
            if not is_ours(name) and found[name]["bits"] == found[ours]["bits"]
        }
        if others:
            named[f"over_best_other{suffix}"] = rates[ours] / max(others.values())
        named |= {
            f"over_{_word(name)}{suffix}": rates[ours] / rate for name, rate in others.items()
        }
        if bits == "full":
            named["different_answers"] = found[ours]["different_answers"]
    return named


def _word(name: str) -> str:
    """A lane's name as part of a key. Pure."""
    return name.replace(", int8", "").replace(", ", "_").replace(".", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRecord(Record):
    """A record with the ceilings of the same run, and the engines' versions."""

    ceilings: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]


def measure(plan: Plan, wanted: Sequence[LaneSpec], probe_s: float) -> PrefixRecord:
    """All lanes, round by round."""
    threads, ceilings = default_threads(), []
    meter, prompter = CeilingMeter(probe_s=probe_s), Prompter(smollm2())
    jobs = requests(prompter, plan)
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    with ExitStack() as stack:
        lanes, reasons = open_lanes(wanted, threads, stack)
        versions = {lane.spec.name: lane.version for lane in lanes}

        def run(lane: TextLane, _: int) -> None:
            outcomes[lane.spec.name].append(lane.run(jobs[: plan.most.get(lane.spec.name)]))

        def begin() -> None:
            ceilings.append(meter.measure_all(threads))

        warming = [prompter.job("warm", prompter.words(plan.own_tokens), 2)]
        reasons |= warm(lanes, warming)
        reasons |= play(lanes, plan.repeats, run, begin)
    expected = next((outcomes[name][-1] for name in _EXPECTED if outcomes[name]), None)
    rows = [
        row_of(spec, outcomes[spec.name], expected)
        for spec in wanted
        if outcomes[spec.name] and spec.name not in reasons
    ]
    return PrefixRecord(
        repeats=plan.repeats,
        summary=summarise(rows),
        rows=[*rows, *absent_rows(reasons, wanted)],
        ceilings=ceiling_rows(ceilings),
        versions=versions,
    )


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="fewer requests, quick engines")
    parser.add_argument("--repeats", type=int, help="rounds")
    names = [lane.name for lane in LANES]
    parser.add_argument("--engines", nargs="+", choices=names, metavar="NAME", help=str(names))
    flags = parser.parse_args()
    plan = QUICK if flags.quick else FULL
    if flags.repeats is not None:
        plan = replace(plan, repeats=flags.repeats)
    wanted = lanes_named(flags.engines, is_quick=flags.quick)
    report(measure(plan, wanted, 0.1 if flags.quick else 0.25), flags.json)


if __name__ == "__main__":
    main()
