"""One model without programs around it: decode and prefill of SmolLM2-135M beside the ceilings.

Decode: 1, 8 and 32 streams with short prompts of their own. From the time of whole answers the
time of the same prompts with one token each is taken away, so that a rate is of decode steps
alone. Its share of the ceiling is the bytes of the weights (4 a value; for int8, 1 a value, no
scales counted) times steps a second, over the bandwidth of reading measured in the same round.

Prefill: one prompt of 512 tokens. Its share is the arithmetic that the model asks for (products
with every matrix, causal attention) over the fp32 matrix rate measured in the same round.

Engines take turns, each with its caches emptied before every run, and medians over rounds are
told. The engines' answers are compared with those of transformers.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.ceilings import CeilingMeter, Ceilings, ceiling_rows, highest
from benchmarks.engines import Answer, Job
from benchmarks.model_costs import ModelCosts, model_costs
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

__all__ = ["Plan", "Probe", "measure", "rows_of", "summarise"]

_BITS = {"full": "fp32", "int8": "int8"}
_OURS = {"fp32": "mmserve", "int8": "mmserve, int8"}
_LLAMA = {"fp32": "llama.cpp", "int8": "llama.cpp, int8"}
_EXPECTED = ("transformers", "transformers, batched")
"""Lanes whose answers are the reference; together they answer for all numbers of streams."""
_SHORT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Args:
        answer_tokens: length of each answer, by number of streams.
        prompt_tokens: of the long prompt.
        repeats: rounds.
        probe_s: see `CeilingMeter`.
    """

    answer_tokens: Mapping[int, int]
    prompt_tokens: int
    repeats: int
    probe_s: float


FULL = Plan({1: 128, 8: 64, 32: 32}, prompt_tokens=512, repeats=5, probe_s=0.25)
QUICK = Plan({1: 16, 8: 8}, prompt_tokens=256, repeats=1, probe_s=0.1)


@dataclass(frozen=True, slots=True)
class Probe:
    """What one lane did in one round; decode rates are of all streams together."""

    decode_tokens_per_s: Mapping[int, float]
    prefill_tokens_per_s: float
    first_token_s: float
    answers: Mapping[str, Answer]
    elsewhere_cores: float


class Prompts:
    """The same prompts for every lane and round."""

    def __init__(self, prompter: Prompter, plan: Plan) -> None:
        self._prompter = prompter
        self._short = {
            streams: [prompter.words(_SHORT_TOKENS) for _ in range(streams)]
            for streams in plan.answer_tokens
        }
        self._long = prompter.words(plan.prompt_tokens)

    def streams(self, num_streams: int, num_tokens: int) -> list[Job]:
        """A job a stream, answered with so many tokens. Pure."""
        prompts = enumerate(self._short[num_streams])
        return [self._prompter.job(f"{num_streams}-{i}", ids, num_tokens) for i, ids in prompts]

    def long(self) -> list[Job]:
        """The long prompt, answered with one token. Pure."""
        return [self._prompter.job("long", self._long, 1)]


def probe(lane: TextLane, plan: Plan, prompts: Prompts) -> Probe:
    """All measurements of a lane, once. Raises EngineFailed."""
    rates: dict[int, float] = {}
    answers: dict[str, Answer] = {}
    busy = []
    for streams, num_tokens in plan.answer_tokens.items():
        if not _is_fit(lane.spec, streams):
            continue
        begun = lane.run(prompts.streams(streams, 1))
        whole = lane.run(prompts.streams(streams, num_tokens))
        rates[streams] = streams * (num_tokens - 1) / _decode_s(begun, whole)
        answers |= whole.answers
        busy.append(whole.elsewhere_cores)
    long = lane.run(prompts.long())
    first_s = long.answers["long"].first_token_s
    return Probe(
        decode_tokens_per_s=rates,
        prefill_tokens_per_s=plan.prompt_tokens / long.seconds,
        first_token_s=long.seconds if first_s is None else first_s,
        answers=answers | dict(long.answers),
        elsewhere_cores=statistics.median([*busy, long.elsewhere_cores]),
    )


def _decode_s(begun: Outcome, whole: Outcome) -> float:
    """Seconds of decode steps alone; of everything if noise has eaten the difference. Pure."""
    difference_s = whole.seconds - begun.seconds
    return difference_s if difference_s > 0 else whole.seconds


def _is_fit(spec: LaneSpec, streams: int) -> bool:
    """Whether a way of transformers fits: one prompt alone, several as a batch. Pure."""
    if spec.engine == "transformers":
        return streams == 1
    return spec.engine != "transformers-batched" or streams > 1


def rows_of(
    spec: LaneSpec,
    probes: Sequence[Probe],
    ceilings: Sequence[Ceilings],
    costs: ModelCosts,
    prompt_tokens: int,
) -> list[dict[str, Any]]:
    """Medians of a lane, a row for each number of streams and one for the long prompt. Pure.

    Each probe is measured against the ceilings of its own round.
    """
    same: dict[str, Any] = {"engine": spec.name, "bits": _BITS[spec.bits]}
    busy = round(statistics.median(one.elsewhere_cores for one in probes), 2)
    rows = []
    for streams in probes[0].decode_tokens_per_s:
        rates = [one.decode_tokens_per_s[streams] for one in probes]
        row = {**same, "measured": f"decode, {streams}", **_spread(rates)}
        if streams == 1:
            step_bytes = costs.step_bytes(spec.bits)
            pairs = list(zip(rates, ceilings, strict=True))
            row["share_of_ceiling"] = statistics.median(
                rate * step_bytes / ceiling.read_bytes_per_s for rate, ceiling in pairs
            )
            row["share_of_copy"] = statistics.median(
                rate * step_bytes / ceiling.copy_bytes_per_s for rate, ceiling in pairs
            )
        rows.append({**row, "busy_elsewhere_cores": busy})
    rates = [one.prefill_tokens_per_s for one in probes]
    flop_per_token = costs.prefill_flop(prompt_tokens) / prompt_tokens
    share = statistics.median(
        rate * flop_per_token / ceiling.matrix_flop_per_s
        for rate, ceiling in zip(rates, ceilings, strict=True)
    )
    row = {**same, "measured": f"prefill, {prompt_tokens}", **_spread(rates)}
    row |= {
        "share_of_ceiling": share,
        "first_token_ms": 1e3 * statistics.median(one.first_token_s for one in probes),
        "busy_elsewhere_cores": busy,
    }
    return [*rows, row]


def _spread(rates: Sequence[float]) -> dict[str, float]:
    return {
        "tokens_per_s": statistics.median(rates),
        "slowest": min(rates),
        "fastest": max(rates),
    }


def summarise(rows: Sequence[Mapping[str, Any]], plan: Plan) -> dict[str, float]:
    """Shares of ceilings and ratios to other engines; what was not measured is absent. Pure."""
    found = {(row["engine"], row["measured"]): row for row in rows if "measured" in row}
    prefill = f"prefill, {plan.prompt_tokens}"
    named: dict[str, float | None] = {}
    for bits, ours in _OURS.items():
        alone = found.get((ours, "decode, 1"), {})
        first = found.get((ours, prefill), {})
        named[f"decode_share_of_bandwidth_{bits}"] = alone.get("share_of_ceiling")
        named[f"decode_share_of_copy_bandwidth_{bits}"] = alone.get("share_of_copy")
        named[f"prefill_share_of_matrix_rate_{bits}"] = first.get("share_of_ceiling")
        named[f"first_token_ms_{bits}"] = first.get("first_token_ms")
        for streams in plan.answer_tokens:
            name = "decode" if streams == 1 else f"streams{streams}"
            measured = f"decode, {streams}"
            named[f"{name}_over_llama_cpp_{bits}"] = _over(
                found, measured, bits, {_LLAMA[bits]}
            )
            named[f"{name}_over_best_other_{bits}"] = _over(found, measured, bits)
        named[f"prefill_over_llama_cpp_{bits}"] = _over(found, prefill, bits, {_LLAMA[bits]})
        named[f"prefill_over_best_other_{bits}"] = _over(found, prefill, bits)
    named["prefill_share_of_matrix_rate"] = named["prefill_share_of_matrix_rate_fp32"]
    for streams in set(plan.answer_tokens) - {1}:
        both = [named[f"streams{streams}_over_llama_cpp_{bits}"] for bits in _OURS]
        known = [one for one in both if one is not None]
        named[f"streams{streams}_over_llama_cpp"] = min(known, default=None)
    return {name: value for name, value in named.items() if value is not None}


def _over(
    found: Mapping[tuple[str, str], Mapping[str, Any]],
    measured: str,
    bits: str,
    others: set[str] | None = None,
) -> float | None:
    """Our rate over the best of others at the same bits; None if nobody else has one. Pure."""
    mine = found.get((_OURS[bits], measured))
    rates = [
        row["tokens_per_s"]
        for (name, what), row in found.items()
        if what == measured
        and row["bits"] == bits
        and not is_ours(name)
        and (others is None or name in others)
    ]
    return None if mine is None or not rates else float(mine["tokens_per_s"] / max(rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class SingleRecord(Record):
    """A record with the ceilings of the same run, and the engines' versions."""

    ceilings: Sequence[Mapping[str, Any]]
    versions: Mapping[str, str]


def measure(plan: Plan, wanted: Sequence[LaneSpec]) -> SingleRecord:
    """All lanes, round by round."""
    directory, threads = smollm2(), default_threads()
    meter, ceilings = CeilingMeter(probe_s=plan.probe_s), []
    prompts = Prompts(Prompter(directory), plan)
    probes: dict[str, dict[int, Probe]] = defaultdict(dict)
    with ExitStack() as stack:
        lanes, reasons = open_lanes(wanted, threads, stack)
        versions = {lane.spec.name: lane.version for lane in lanes}

        def run(lane: TextLane, number: int) -> None:
            probes[lane.spec.name][number] = probe(lane, plan, prompts)

        def begin() -> None:
            ceilings.append(meter.measure_all(threads))

        reasons |= warm(lanes, prompts.streams(1, 2))
        reasons |= play(lanes, plan.repeats, run, begin)
    expected = _expected(probes)
    rows: list[dict[str, Any]] = []
    for spec in wanted:
        done = probes.get(spec.name, {})
        if done and spec.name not in reasons:
            best = [highest(ceilings[number]) for number in done]
            several = list(done.values())
            rows += rows_of(spec, several, best, model_costs(directory), plan.prompt_tokens)
            num_different, num_compared = differences(several[-1].answers, expected)
            rows[-1] |= {"different_answers": num_different, "answers_compared": num_compared}
    summary = summarise(rows, plan)
    summary["different_answers"] = sum(
        row.get("different_answers", 0) for row in rows if row["engine"] == _OURS["fp32"]
    )
    return SingleRecord(
        repeats=plan.repeats,
        summary=summary,
        rows=[*rows, *absent_rows(reasons, wanted)],
        ceilings=ceiling_rows(ceilings),
        versions=versions,
    )


def _expected(probes: Mapping[str, Mapping[int, Probe]]) -> dict[str, Answer]:
    """The reference's answers by job, of the last round. Pure."""
    answers: dict[str, Answer] = {}
    for name in reversed(_EXPECTED):
        if probes.get(name):
            answers |= list(probes[name].values())[-1].answers
    return answers


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="short answers, quick engines")
    parser.add_argument("--repeats", type=int, help="rounds")
    names = [lane.name for lane in LANES]
    parser.add_argument("--engines", nargs="+", choices=names, metavar="NAME", help=str(names))
    flags = parser.parse_args()
    plan = QUICK if flags.quick else FULL
    if flags.repeats is not None:
        plan = replace(plan, repeats=flags.repeats)
    report(measure(plan, lanes_named(flags.engines, is_quick=flags.quick)), flags.json)


if __name__ == "__main__":
    main()
