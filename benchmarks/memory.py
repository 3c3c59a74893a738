"""What an engine keeps: bytes of a cached token, and whether anything grows under load.

Bytes of a token: SmolLM2-135M's store of keys and values is filled with prompts, and the growth
of the process is told per token, beside what the sizes in config.json ask for. Huge pages are
turned off meanwhile, since a page of 2 MiB is counted whole once one of its tokens is written.

Growth: a model with pictures answers a mixed load without end, with caches so small that all of
them evict all the time. Memory of the process and its children, threads, open files and
Python's memory blocks are sampled. The first third warms caches and allocators and is not
judged; the median of all slopes between two samples says what the rest grew by.

Each part has a process of its own, so that neither hides in memory that the other has freed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from benchmarks.memory_load import MixedLoad
from benchmarks.record import Record, report
from benchmarks.text_lanes import smollm2
from mmserve.core import (
    EngineConfig,
    MediaConfig,
    Request,
    SamplingParams,
    SchedConfig,
    TokensPart,
)
from mmserve.engine import Engine, collect

__all__ = ["Growth", "bytes_of_tokens", "growth", "judged", "kv_bytes", "slope"]

_Result = TypeVar("_Result")

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SET_HUGE_PAGES_OFF = 41
"""PR_SET_THP_DISABLE of prctl(2)."""
_PROMPT_TOKENS = 512
_WARMING_SHARE = 1 / 3
_NUM_ASKERS = 12
_NUM_SLOPES = 300
"""Samples that slopes are taken of; more are thinned out first."""


# Bytes of a token


def kv_bytes(directory: Path) -> int:
    """Bytes of one token's keys and values in float32, from config.json alone. Pure."""
    config = json.loads((directory / "config.json").read_text())
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    values = config["num_hidden_layers"] * config["num_key_value_heads"] * width
    return 2 * 4 * int(values)


def bytes_of_tokens(num_slots: int) -> list[dict[str, Any]]:
    """Memory of the process as the cache fills, a row for each stop on the way."""
    directory = smollm2()
    had_huge_pages = _turn_huge_pages(is_off=True)
    try:
        with Engine.from_config(
            EngineConfig(model=str(directory), num_slots=num_slots)
        ) as engine:
            return _fill(engine, kv_bytes(directory), num_slots)
    finally:
        if had_huge_pages:
            _turn_huge_pages(is_off=False)


def _fill(engine: Engine, computed: int, num_slots: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    length = min(_PROMPT_TOKENS, num_slots // 16)
    points, rows = [], []
    for stop in np.linspace(0.2, 0.95, 9).tolist():
        while engine.counters()["slots_cached"] + length < stop * num_slots:
            _ask(engine, random.integers(1000, 40_000, length))
        points.append((engine.counters()["slots_cached"], resident_bytes()))
        per_token = slope(points)
        rows.append(
            {
                "measured": "bytes of a cached token",
                "cached_tokens": int(points[-1][0]),
                "resident_mib": points[-1][1] / 2**20,
                "bytes_per_token": per_token,
                "computed_bytes": computed,
                "told_by_engine_bytes": engine.model.kv_bytes_per_token,
                "over_computed": per_token / computed,
            }
        )
    return rows


def _ask(engine: Engine, token_ids: Any) -> None:  # noqa: ANN401 - int64 [n]
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    parts = (TokensPart(tuple(token_ids.tolist())),)
    collect(engine.submit(Request(request_id="fill", parts=parts, sampling=sampling)).outputs())


def _turn_huge_pages(*, is_off: bool) -> bool:
    """Ask the system for pages of 4 KiB in this process, or not any more; whether it heard."""
    if not sys.platform.startswith("linux"):
        return False
    return ctypes.CDLL(None).prctl(_SET_HUGE_PAGES_OFF, int(is_off), 0, 0, 0) == 0


# Growth under load


def resident_bytes(process: str | int = "self") -> int:
    """Resident memory of one process, 0 if it has ended. Pure."""
    try:
        text = Path(f"/proc/{process}/statm").read_text()
    except OSError:
        return 0
    return int(text.split()[1]) * _PAGE_BYTES


def _children() -> list[int]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except OSError:  # the thread has ended
            continue
    return found


def sample(began: float, load: MixedLoad, engine: Engine) -> dict[str, float]:
    """What the process holds now. Cost: some milliseconds."""
    counters = engine.counters()
    return {
        "at_s": time.monotonic() - began,
        "resident_mib": resident_bytes() / 2**20,
        "children_mib": sum(map(resident_bytes, _children())) / 2**20,
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "blocks": sys.getallocatedblocks(),  # a list of objects would hold half-made ones
        "requests": sum(load.counts.values()),
        "steps": counters["steps_total"],
        "slots_unaccounted": counters["slots"]
        - sum(counters[f"slots_{name}"] for name in ("free", "cached", "held")),
    }


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median slope of all pairs of points; 0 if all lie at one place. Pure.

    Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
    """
    step = max(1, len(points) // _NUM_SLOPES)
    pairs = combinations(points[::step], 2)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] > a[0]]
    return statistics.median(slopes) if slopes else 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """What a load showed: samples in time order, requests ended by kind, what went wrong."""

    samples: list[dict[str, float]]
    counts: dict[str, int]
    failures: list[str]


def growth(seconds: float, interval_s: float) -> Growth:
    """An engine under load for so long."""
    config = EngineConfig(
        model="tabletop",
        num_slots=4096,
        grammar_cache_bytes=4 << 20,
        sched=SchedConfig(max_running=16, feature_cache_tokens=2048),
        media=MediaConfig(source_cache_bytes=16 << 20),
    )
    samples = []
    with Engine.from_config(config) as engine:
        began = time.monotonic()
        with MixedLoad(engine, _NUM_ASKERS) as load:
            while time.monotonic() - began < seconds:
                time.sleep(interval_s)
                samples.append(sample(began, load, engine))
    return Growth(samples, dict(load.counts), load.failures)


def judged(samples: Sequence[dict[str, float]]) -> dict[str, float]:
    """What grew after the warming, over the time that is judged. Pure."""
    rest = [one for one in samples if one["at_s"] >= _WARMING_SHARE * samples[-1]["at_s"]]
    minutes = (rest[-1]["at_s"] - rest[0]["at_s"]) / 60
    grown = {
        name: slope([(one["at_s"] / 60, one[name]) for one in rest]) * minutes
        for name in ("resident_mib", "children_mib", "threads", "files", "blocks")
    }
    middle = {name: statistics.median(one[name] for one in rest) for name in grown}
    return {
        "judged_minutes": minutes,
        "grown_share_resident": grown["resident_mib"] / middle["resident_mib"],
        "grown_mib_resident": grown["resident_mib"],
        "grown_mib_children": grown["children_mib"],
        "grown_threads": grown["threads"],
        "grown_files": grown["files"],
        "grown_share_blocks": grown["blocks"] / middle["blocks"],
        "slots_unaccounted": max(abs(one["slots_unaccounted"]) for one in samples),
        "requests": samples[-1]["requests"],
    }


def _thinned(samples: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """At most about 60 rows, evenly spread and with the last one. Pure."""
    step = max(1, len(samples) // 60)
    return [
        {"measured": "growth", **{name: round(value, 2) for name, value in one.items()}}
        for one in samples[::-1][::step][::-1]
    ]


def measure(num_slots: int, minutes: float) -> Record:
    """Bytes of a token, then growth."""
    filled = _apart(bytes_of_tokens, num_slots)
    shown = _apart(growth, 60 * minutes, 0.5 if minutes <= 2 else 2.0)
    for failure in shown.failures[:10]:
        print(failure, file=sys.stderr)
    summary = {
        "bytes_per_cached_token": filled[-1]["bytes_per_token"],
        "bytes_over_computed": filled[-1]["over_computed"],
        "bytes_off_computed_share": abs(filled[-1]["over_computed"] - 1),
        **judged(shown.samples),
        **{f"requests_{kind}": count for kind, count in sorted(shown.counts.items())},
        "failures": len(shown.failures),
    }
    return Record(repeats=1, summary=summary, rows=[*filled, *_thinned(shown.samples)])


def _apart(call: Callable[..., _Result], *values: Any) -> _Result:  # noqa: ANN401 - as the call's
    """The result of a call in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(call, *values).result()


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="a small store, one minute")
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the load")
    flags = parser.parse_args()
    size = (2048, min(flags.minutes, 0.7)) if flags.quick else (16_384, flags.minutes)
    report(measure(*size), flags.json)


if __name__ == "__main__":
    main()
