"""Token hit rate over the optimum, by shape of stream, capacity of the cache, load and policy.

Offline, all requests of a recorded stream wait, shuffled, before the first step. Online,
programs begin at Poisson times, and a program sends the next request of a chain as soon as the
last one is answered. Load 1 is what the same machine served offline; 2 and 8 are rushes.
Capacities are multiples of the longest request. The hits of a run are divided by those of the
same requests

    share_of_optimum       in the best order, all known in advance, nothing ever evicted: every
                           prefix of a prompt is computed once (the paper's theorem). It may
                           come out above 1, since that order cannot hit answers
    share_with_answers     the same, if a prompt that goes on from an answer could hit that too;
                           offline no server knows that a waiting prompt holds an answer that
                           has not been drawn
    share_of_clairvoyant   (online) in the best order found in which a request starts when this
                           run started one, and not before it came, with the same cache, one
                           request in it at a time, and with foresight about what to evict

A small cache cannot reach the optimum of requests that come in over time: what is evicted
between two of them is computed again in any order. The last share leaves that out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.clairvoyant import Trie, clairvoyant_hits
from benchmarks.hit_rate_plot import plot
from benchmarks.record import Record, report
from benchmarks.replay import Replay, replay
from benchmarks.shapes import SHAPES, Ask, stream
from mmserve.core import SchedConfig
from mmserve.radix import Interner, prefix_keys
from mmserve.sched.books.optimum import ServedRequest, optimal_hits

DEFAULT = "longest-prefix"
OTHERS = ("fcfs", "priority", "dfs-weight", "shortest-prefill", "random")
UNLIMITED = math.inf
CAPACITIES = (1.1, 2.0, 4.0, UNLIMITED)
LOADS = (0.9, 2.0, 8.0)
NUM_REQUESTS = 400
QUICK_NUM_REQUESTS = 100

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run. `load` is None offline."""

    shape: str
    capacity: float
    load: float | None
    policy: str = DEFAULT
    fairness: bool = True


class Trace:
    """A stream with all that the runs of it have in common."""

    def __init__(self, shape: str, size: int) -> None:
        self.asks = stream(shape, size)
        self.longest = max(ask.num_tokens for ask in self.asks)
        self.total = sum(ask.num_tokens for ask in self.asks)
        self.num_prompt = sum(ask.prompt.num_tokens for ask in self.asks)
        served = _served(self.asks)
        self.hits_with_answers = optimal_hits(served)
        self.optimal_hits = optimal_hits(
            replace(request, answer_keys=_NONE) for request in served
        )
        self.trie = Trie.of(served)
        self._offline_s: dict[float, float] = {}

    def num_slots(self, capacity: float) -> int:
        """Slots of a cache `capacity` times as large as the longest request."""
        if capacity == UNLIMITED:
            return self.total
        return math.ceil(capacity * self.longest)

    def run(self, case: Case) -> Replay:
        """Serve the stream. Changes: remembers how long the default takes offline."""
        if case.load is None:
            order = np.random.default_rng(1).permutation(len(self.asks))
            done = self._play(case, [self.asks[place] for place in order], [0.0] * len(order))
            if case.policy == DEFAULT:
                self._offline_s.setdefault(case.capacity, done.seconds)
            return done
        if case.capacity not in self._offline_s:
            self.run(Case(shape=case.shape, capacity=case.capacity, load=None))
        due_s = self._due_s(case.load, self._offline_s[case.capacity])
        return self._play(case, list(self.asks), due_s)

    def _play(self, case: Case, asks: list[Ask], due_s: list[float | None]) -> Replay:
        config = SchedConfig(policy=case.policy, fairness=case.fairness)  # type: ignore[arg-type]
        return replay(
            asks,
            due_s,
            config,
            num_slots=self.num_slots(case.capacity),
            context_length=self.longest,
        )

    def _due_s(self, load: float, offline_s: float) -> list[float | None]:
        """Poisson times of the first requests of programs, in a shuffled order."""
        random = np.random.default_rng(2)
        roots = [place for place, ask in enumerate(self.asks) if ask.after is None]
        gap_s = offline_s / len(roots) / load
        times: NDArray[np.float64] = np.cumsum(random.exponential(gap_s, len(roots)))
        due_s: list[float | None] = [None] * len(self.asks)
        for place, time_s in zip(random.permutation(roots), times, strict=True):
            due_s[place] = float(time_s)
        return due_s


def _served(asks: tuple[Ask, ...]) -> list[ServedRequest]:
    """Requests as the solver wants them; the last token drawn gets no KV."""
    interner = Interner()
    return [
        ServedRequest(
            keys=prefix_keys(ask.prompt, interner),
            limit=ask.prompt.num_tokens - 1,
            namespace=ask.prompt.namespace,
            answer_keys=ask.answer[:-1],
        )
        for ask in asks
    ]


def cases(shape: str, *, quick: bool) -> Iterator[Case]:
    """Runs of one shape, offline ones of a capacity first."""
    loads = (0.9,) if quick else LOADS
    for capacity in CAPACITIES:
        yield Case(shape=shape, capacity=capacity, load=None)
    for capacity, load in product((1.1, UNLIMITED) if quick else CAPACITIES, loads):
        yield Case(shape=shape, capacity=capacity, load=load)
    unfair = ((1.1, None),) if quick else product((1.1, 4.0), (None, 2.0))
    for capacity, load in unfair:
        yield Case(shape=shape, capacity=capacity, load=load, fairness=False)
    compared = ((1.1, None),) if quick else ((1.1, None), (4.0, None), (4.0, 0.9))
    for policy, (capacity, load) in product(OTHERS, compared):
        yield Case(shape=shape, capacity=capacity, load=load, policy=policy)


def _row(case: Case, trace: Trace, done: Replay) -> dict[str, Any]:
    num_least = trace.num_prompt - trace.optimal_hits
    clairvoyant = None
    if case.load is not None and case.policy == DEFAULT:
        clairvoyant = clairvoyant_hits(
            trace.trie, done.arrived_s, done.started_s, trace.num_slots(case.capacity)
        )
    return {
        "shape": case.shape,
        "capacity": "unlimited" if case.capacity == UNLIMITED else case.capacity,
        "load": "offline" if case.load is None else case.load,
        "policy": case.policy,
        "fairness": case.fairness,
        "requests": len(trace.asks),
        "prompt_tokens": trace.num_prompt,
        "hit_tokens": done.hit_tokens,
        "optimal_hits": trace.optimal_hits,
        "share_of_optimum": done.hit_tokens / trace.optimal_hits,
        "share_with_answers": done.hit_tokens / trace.hits_with_answers,
        "share_of_clairvoyant": "" if clairvoyant is None else done.hit_tokens / clairvoyant,
        "computed_over_least": done.prompt_computed / num_least,
        "retractions": done.retractions,
        "wait_p50_s": float(np.median(done.waits_s)),
        "wait_p99_s": float(np.percentile(done.waits_s, 99)),
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Worst shares of the default policy, and means of all policies offline."""
    default = [row for row in rows if row["policy"] == DEFAULT and row["fairness"]]
    offline = [row for row in default if row["load"] == "offline"]
    online = [row for row in default if row["load"] != "offline"]
    roomy = [row for row in online if row["capacity"] == "unlimited"]
    summary = {
        "min_share_of_optimum_offline": _least(offline, "share_of_optimum"),
        "min_share_with_answers_offline": _least(offline, "share_with_answers"),
        "min_share_of_optimum_online": _least(online, "share_of_optimum"),
        "min_share_of_optimum_online_unlimited": _least(roomy, "share_of_optimum"),
        "min_share_of_clairvoyant_online": _least(online, "share_of_clairvoyant"),
        "mean_share_of_optimum_online": _mean(online, "share_of_optimum"),
        "mean_share_of_clairvoyant_online": _mean(online, "share_of_clairvoyant"),
    }
    for policy in (DEFAULT, *OTHERS):
        compared = [
            row
            for row in rows
            if (row["policy"], row["capacity"], row["load"]) == (policy, 1.1, "offline")
            and row["fairness"]
        ]
        if compared:
            name = f"mean_share_offline_{policy.replace('-', '_')}"
            summary[name] = _mean(compared, "share_of_optimum")
    return summary


def _least(rows: list[dict[str, Any]], name: str) -> float:
    return min((row[name] for row in rows), default=math.nan)


def _mean(rows: list[dict[str, Any]], name: str) -> float:
    return float(np.mean([row[name] for row in rows])) if rows else math.nan


def measure(shapes: Sequence[str], policies: Sequence[str], *, quick: bool) -> Record:
    """All runs of these shapes and policies."""
    rows = []
    for shape in shapes:
        trace = Trace(shape, QUICK_NUM_REQUESTS if quick else NUM_REQUESTS)
        for case in cases(shape, quick=quick):
            if case.policy in policies:
                rows.append(_row(case, trace, trace.run(case)))
        print(f"{shape}: {len(rows)} runs so far", file=sys.stderr)
    return Record(repeats=1, summary=summarise(rows), rows=rows)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument("--quick", action="store_true", help="100 requests a shape, fewer runs")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--policies", nargs="+", default=(DEFAULT, *OTHERS))
    flags = parser.parse_args()
    record = measure(flags.shapes, flags.policies, quick=flags.quick)
    report(record, flags.json)
    if flags.plot is not None:
        plot(record.rows, flags.plot)


if __name__ == "__main__":
    main()
