"""What the project wants of its benchmarks: figures by the keys of their summaries.

A target compares two things of one run: an engine with another, or with the machine's ceiling.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["TARGETS", "Judgement", "Target", "judge"]

Unit = Literal["times", "share", "count", "MiB"]


@dataclass(frozen=True, slots=True)
class Target:
    """One figure and where it should be.

    Args:
        benchmark: whose record has it.
        key: of the record's summary.
        wording: what it is, for people.
        goal: the least that is wanted, or with `is_most` the most.
        unit: how it is written.
        is_most: whether lower is better.
    """

    benchmark: str
    key: str
    wording: str
    goal: float
    unit: Unit = "times"
    is_most: bool = False

    def written(self, value: float) -> str:
        """A value of this figure as people write it. Pure."""
        if self.unit == "share":
            percent = 100 * value
            return f"{percent:.2g} %" if abs(percent) < 1 else f"{percent:.1f} %"
        if self.unit == "times":
            return f"{value:.3f}x" if value < 1.1 else f"{value:.2f}x"
        return f"{value:.3g}" + (" MiB" if self.unit == "MiB" else "")

    @property
    def written_goal(self) -> str:
        """The goal in words. Pure."""
        goal = f"{100 * self.goal:g} %" if self.unit == "share" else f"{self.goal:g}"
        mark = {"share": "", "times": "x", "count": "", "MiB": " MiB"}[self.unit]
        return f"at {'most' if self.is_most else 'least'} {goal}{mark}"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A target beside what was measured.

    Args:
        target: what was wanted.
        value: None if no record has it.
        is_met: False also where there is no value.
        wording: "met", or "missed", and by how much; "not measured".
    """

    target: Target
    value: float | None
    is_met: bool
    wording: str


def judge(target: Target, summary: Mapping[str, Any] | None) -> Judgement:
    """How a record's summary stands to a target. Pure."""
    value = None if summary is None else summary.get(target.key)
    if value is None:
        return Judgement(target, None, is_met=False, wording="not measured")
    value = float(value)
    is_met = value <= target.goal if target.is_most else value >= target.goal
    return Judgement(target, value, is_met, _wording(target, value, is_met=is_met))


def _wording(target: Target, value: float, *, is_met: bool) -> str:
    verdict = "met" if is_met else "missed"
    if target.goal == 0 or value <= 0:
        gap = abs(value - target.goal)
        return verdict if gap == 0 else f"{verdict} by {target.written(gap)}"
    ratio = value / target.goal
    if ratio >= 2 or (ratio <= 0.5 and not target.is_most):
        return f"{verdict}, {ratio:.2g} times the goal"
    side = "above" if ratio > 1 else "below"
    percent = 100 * abs(ratio - 1)
    return f"{verdict}, at the goal" if percent < 0.05 else f"{verdict}, {percent:.1f} % {side}"


def _shares(key: str, wording: str, goal: float) -> list[Target]:
    """Targets of `single` at both numbers of bits."""
    return [
        Target("single", f"{key}_{bits}", f"{wording}, {bits}", goal, "share")
        for bits in ("fp32", "int8")
    ]


def _ratios(key: str, wording: str, goal: float) -> list[Target]:
    return [
        Target("single", f"{key}_{bits}", f"{wording}, {bits}", goal)
        for bits in ("fp32", "int8")
    ]


def _with_int8(targets: list[Target]) -> list[Target]:
    """The same targets again for int8 weights, whose keys end so."""
    again = [
        Target(
            one.benchmark,
            f"{one.key}_int8",
            f"{one.wording} (int8 weights)",
            one.goal,
            one.unit,
            one.is_most,
        )
        for one in targets
    ]
    return [target for pair in zip(targets, again, strict=True) for target in pair]


TARGETS: tuple[Target, ...] = (
    *_with_int8(
        [
            Target(
                "image_qa",
                "speedup_vs_transformers_sequential",
                "pictures x questions, over transformers one at a time",
                12,
            ),
            Target(
                "image_qa",
                "speedup_vs_transformers_batched",
                "over transformers' best batch",
                3,
            ),
            Target("image_qa", "over_best_other_engine", "over the best other engine", 2),
        ]
    ),
    Target(
        "image_qa",
        "computed_over_least",
        "tokens computed over the least possible",
        1.01,
        is_most=True,
    ),
    *_with_int8(
        [
            Target(
                "shared_prefix",
                "over_best_other",
                "64 requests on one prefix, over the best other engine",
                1.5,
            ),
        ]
    ),
    *_with_int8(
        [
            Target(
                "video_qa",
                "speedup_vs_transformers_sequential",
                "10 questions a clip, over transformers one at a time",
                10,
            ),
        ]
    ),
    Target(
        "video_qa",
        "planner_over_row_order",
        "a job by the planner over row order, room for a tenth",
        1.5,
    ),
    *(
        Target("batch_job", f"{key}_over_{key_of}", f"a job: {wording}", goal, is_most=True)
        for key, key_of, wording, goal in (
            ("computed", "least", "tokens computed over the least possible", 1.01),
            ("clips_opened", "clips", "times a clip is opened", 1),
            ("frames_encoded", "frames", "times a frame is encoded", 1),
        )
    ),
    Target(
        "batch_job", "accuracy_over_card", "a job: right answers, over the model card's", 0.99
    ),
    *(
        Target("batch_job", key, f"a job killed at random: {wording}", 0, "count", is_most=True)
        for key, wording in (
            ("lost", "records lost"),
            ("repeated", "finished questions asked again"),
            ("duplicates", "records that are there twice"),
        )
    ),
    Target(
        "programs",
        "min_speedup_vs_transformers",
        "worst of the sharing programs, over transformers",
        6,
    ),
    *_shares("decode_share_of_bandwidth", "decode, share of the reading bandwidth", 0.7),
    Target(
        "single",
        "prefill_share_of_matrix_rate",
        "prefill of 512 tokens, share of the matrix rate",
        0.7,
        "share",
    ),
    *_ratios("decode_over_llama_cpp", "decode of one stream over llama.cpp", 0.9),
    *_ratios("streams8_over_llama_cpp", "8 streams over llama.cpp", 1),
    *_ratios("streams32_over_llama_cpp", "32 streams over llama.cpp", 1),
    Target(
        "no_reuse",
        "outside_model_share",
        "nothing shared: time outside the model's arithmetic",
        0.05,
        "share",
        is_most=True,
    ),
    Target(
        "no_reuse",
        "tree_and_scheduler_share",
        "nothing shared: tree and scheduler",
        0.003,
        "share",
        is_most=True,
    ),
    Target(
        "serve_rate",
        "rate_ratio_at_same_p99_ttft",
        "rate at the same p99 time to first token, over transformers' server",
        3,
    ),
    Target(
        "memory",
        "bytes_off_computed_share",
        "bytes of a cached token, off the model's arithmetic by",
        0.02,
        "share",
        is_most=True,
    ),
    Target(
        "memory",
        "grown_share_resident",
        "memory grown under load",
        0.02,
        "share",
        is_most=True,
    ),
    Target("memory", "grown_threads", "threads grown under load", 0, "count", is_most=True),
    Target("memory", "grown_files", "open files grown under load", 0, "count", is_most=True),
    *(
        Target("serve_load", key, wording, 0, "count", is_most=True)
        for key, wording in (
            ("wrong_ends", "many streams: calls that did not end exactly once"),
            ("wrong_answers", "many streams: answers that are not those given alone"),
            ("metrics_off", "many streams: server's counts off the client's by"),
            ("slots_off", "many streams: slots and sequences unaccounted for"),
        )
    ),
    Target(
        "serve_load",
        "memory_grown_share",
        "many streams: memory grown from a quarter to the end",
        0.05,
        "share",
        is_most=True,
    ),
    Target(
        "serve_load",
        "bad_hosts_latency_ratio",
        "others' latency beside slow, dead and endless hosts",
        1.1,
        is_most=True,
    ),
)
