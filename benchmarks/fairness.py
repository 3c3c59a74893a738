"""Service of several clients on one machine: fair, and in pure locality order; simulated time.

Scenarios: a flood of cache-friendly requests against a cold client; heavy requests against
light ones; fifty clients with skewed rates, some with a common prefix and some with pictures;
three clients with weights 1, 2 and 4; a client that is never idle and hardly ever waits, and
then comes with very many. Each runs under two orders: the default, and the same with fairness
off, which is pure locality order.

Wait is from arrival to the first step. The cold client's fair share is what it would get alone
on a machine that is as many times slower as there are clients.

Service by weight of two clients that both have requests waiting differs by at most quantum + U
from what levels them, either way; U is the most that started work of one client can still cost.
So over any interval in which both wait all the time, the bound is 2 (quantum + U).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks.record import Record, report
from benchmarks.service import GapMeter, ServiceAccount
from benchmarks.simulated import (
    VOCAB_SIZE,
    Arrival,
    Segment,
    SimulatedClock,
    SimulatedRunner,
    StepCost,
    play,
)
from mmserve.core import SchedConfig
from mmserve.sched import Scheduler

CONTEXT_LENGTH = 4096

COST = StepCost(base_ms=8.0, prefill_token_ms=0.1, decode_row_ms=0.2, patch_ms=0.025)
"""A small machine: 10,000 prompt tokens a second. The parts stand to each other as the default
charges do (a generated token 2, a patch 1/4 of a prompt token), so 10 units are 1 ms, besides
the 8 ms that any step takes."""

WAIT = "cold_p99_wait_over_fair_share"
FIRST_TOKEN = "cold_p99_first_token_over_fair_share"

ORDERS: Mapping[str, Mapping[str, Any]] = {
    "fair": {},
    "pure locality": {"fairness": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A finite trace of requests; `cold` names the client whose waits are compared."""

    name: str
    arrivals: Sequence[Arrival]
    num_slots: int = 65_536
    weights: Mapping[str, float] = field(default_factory=dict)
    cold: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run of a scenario came to; gaps and owed units are per weight."""

    makespan_s: float
    account: ServiceAccount
    gap: float
    any_interval_gap: float
    owed: float
    off_scheduler: float | None
    """Most difference of a client's service to the scheduler's own books, as a share of it."""

    def p99_s(self, client: str) -> tuple[float, float]:
        """Seconds from arrival to the first step, and to the first token."""
        account = self.account
        return _p99(account.waits_s[client]), _p99(account.first_tokens_s[client])


# Traces


def flood(random: np.random.Generator, size: float) -> Scenario:
    """Short requests behind one prefix, and long prompts, all different.

    The former are half as many again as the machine can serve, the latter take 60 % of half
    the machine.
    """
    duration_s = 60.0 * size
    prefix = Segment("flood", 400)
    arrivals = [
        Arrival(
            at_s=at_s,
            client="flood",
            segments=(prefix, Segment(f"f{number}", int(random.integers(30, 90)))),
            num_answer=32,
        )
        for number, at_s in enumerate(_poisson(random, 120.0, duration_s))
    ]
    arrivals += [
        Arrival(
            at_s=at_s,
            client="cold",
            segments=(Segment(f"c{number}", int(random.integers(1000, 3000))),),
            num_answer=32,
        )
        for number, at_s in enumerate(_poisson(random, 1.5, duration_s))
    ]
    return Scenario(name="flood against cold", arrivals=_by_time(arrivals), cold="cold")


def heavy(random: np.random.Generator, size: float) -> Scenario:
    """Long prompts and answers against short ones, all there from the start."""
    arrivals = [
        Arrival(
            at_s=0.0,
            client="heavy",
            segments=(Segment(f"h{number}", int(random.integers(800, 2400))),),
            num_answer=int(random.integers(100, 200)),
        )
        for number in range(int(80 * size))
    ]
    arrivals += [
        Arrival(
            at_s=0.0,
            client="light",
            segments=(
                Segment("light", 40),
                Segment(f"l{number}", int(random.integers(20, 80))),
            ),
            num_answer=int(random.integers(8, 16)),
        )
        for number in range(int(2000 * size))
    ]
    return Scenario(name="heavy against light", arrivals=_by_time(arrivals))


def crowd(random: np.random.Generator, size: float) -> Scenario:
    """Fifty clients, rates as 1 / rank, together half as many again as can be served.

    One in five uses a prefix that others use too, one in ten asks about pictures. All prefixes
    are twice what KV can hold, so that going from one client to the next costs recomputation.
    """
    num_clients, duration_s = 50, 40.0 * size
    shares = 1.0 / np.arange(1, num_clients + 1)
    rates = 110.0 * shares / shares.sum()
    arrivals = []
    for client, rate in enumerate(rates):
        prefix = Segment("system" if client % 5 == 2 else f"p{client}", 1000)
        for number, at_s in enumerate(_poisson(random, rate, duration_s)):
            segments = [prefix]
            if client % 10 == 3:
                segments.append(Segment(f"i{client}.{random.integers(20)}", 64, 256))
            segments.append(Segment(f"q{client}.{number}", int(random.integers(20, 120))))
            arrival = Arrival(
                at_s=at_s,
                client=f"{client:02d}",
                segments=tuple(segments),
                num_answer=int(random.integers(8, 48)),
            )
            arrivals.append(arrival)
    return Scenario(name="50 clients", arrivals=_by_time(arrivals), num_slots=20_480)


def weighted(random: np.random.Generator, size: float) -> Scenario:
    """Three clients with weights 1, 2 and 4, the same requests, all there from the start."""
    weights = {"one": 1.0, "two": 2.0, "four": 4.0}
    arrivals = [
        Arrival(
            at_s=0.0,
            client=client,
            segments=(
                Segment(client, 200),
                Segment(f"{client}{number}", int(random.integers(50, 350))),
            ),
            num_answer=int(random.integers(16, 48)),
        )
        for number in range(int(800 * size))
        for client in weights
    ]
    return Scenario(name="weights 1 2 4", arrivals=_by_time(arrivals), weights=weights)


def saved(random: np.random.Generator, size: float) -> Scenario:
    """One client waits all the time; the other one asks a little, always, and then very much.

    Who has something running at all times must not save up turns for later.
    """
    count = int(3000 * size)
    arrivals = [
        Arrival(
            at_s=0.0,
            client="steady",
            segments=(Segment(f"s{number}", int(random.integers(50, 150))),),
            num_answer=20,
        )
        for number in range(2 * count)
    ]
    arrivals += [
        Arrival(
            at_s=0.05 * number,
            client="late",
            segments=(Segment(f"l{number}", 10),),
            num_answer=20,
        )
        for number in range(count // 5)
    ]
    arrivals += [
        Arrival(
            at_s=0.01 * count,
            client="late",
            segments=(Segment(f"m{number}", int(random.integers(50, 150))),),
            num_answer=20,
        )
        for number in range(count)
    ]
    return Scenario(name="saved turns", arrivals=_by_time(arrivals))


SCENARIOS: tuple[Callable[[np.random.Generator, float], Scenario], ...] = (
    flood,
    heavy,
    crowd,
    weighted,
    saved,
)


def _poisson(random: np.random.Generator, per_s: float, duration_s: float) -> list[float]:
    """Times in [0, duration_s), ascending."""
    count = random.poisson(per_s * duration_s)
    return sorted(random.uniform(0.0, duration_s, count).tolist())


def _by_time(arrivals: Sequence[Arrival]) -> list[Arrival]:
    return sorted(arrivals, key=lambda arrival: arrival.at_s)


# Runs


def run(scenario: Scenario, config: SchedConfig, cost: StepCost = COST) -> Outcome:
    """Play a trace to its end. Pure; the same every time."""
    clock = SimulatedClock()
    arrivals, weights = scenario.arrivals, scenario.weights
    config = replace(config, client_weights=tuple(weights.items()))
    scheduler = Scheduler(
        config,
        num_slots=scenario.num_slots,
        context_length=CONTEXT_LENGTH,
        vocab_size=VOCAB_SIZE,
        clock=clock,
    )
    account = ServiceAccount(arrivals, config)
    by_client = [weights.get(client, 1.0) for client in account.clients]
    meter = GapMeter(by_client)
    for step in play(scheduler, SimulatedRunner(cost, clock), clock, arrivals):
        account.take(step)
        waiting = [account.waiting[client] > 0 for client in account.clients]
        meter.take([account.served[client] for client in account.clients], waiting)
    peaks = [account.peak_owed[client] for client in account.clients]
    return Outcome(
        makespan_s=clock.now_s,
        account=account,
        gap=meter.since_start,
        any_interval_gap=meter.any_interval,
        owed=max(np.array(peaks) / np.array(by_client)),
        off_scheduler=_off_scheduler(scheduler, account),
    )


def _off_scheduler(scheduler: Scheduler, account: ServiceAccount) -> float | None:
    told = scheduler.service() if hasattr(scheduler, "service") else {}
    shares = [
        abs(told.get(client, 0.0) - served) / served
        for client, served in account.served.items()
        if served and told
    ]
    return max(shares, default=None)


def fair_share_p99_s(scenario: Scenario, config: SchedConfig) -> tuple[float, float]:
    """The cold client's `p99_s`, alone on a machine slower by the number of clients."""
    alone = [arrival for arrival in scenario.arrivals if arrival.client == scenario.cold]
    num_clients = len({arrival.client for arrival in scenario.arrivals})
    outcome = run(replace(scenario, arrivals=alone), config, COST.slowed(num_clients))
    return outcome.p99_s(scenario.cold or "")


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99))


def bounds(scenario: Scenario, outcome: Outcome, config: SchedConfig) -> tuple[float, float]:
    """2 (quantum + U): with the U that occurred, and with the U that no run can exceed."""
    least_weight = min(scenario.weights.values(), default=1.0)
    most_owed = config.max_running * CONTEXT_LENGTH * max(1.0, config.decode_cost)
    quantum = config.quantum_tokens
    return 2 * (quantum + outcome.owed), 2 * (quantum + most_owed / least_weight)


def measure(size: float, seed: int) -> Record:
    """All scenarios under all orders."""
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    for make in SCENARIOS:
        scenario = make(np.random.default_rng(seed), size)
        made = [_row(scenario, name, SchedConfig(**fields)) for name, fields in ORDERS.items()]
        for row in made:
            row["throughput_share_of_locality"] = made[-1]["makespan_s"] / row["makespan_s"]
        rows += made
    fair = [row for row in rows if row["order"] == "fair"]
    local = [row for row in rows if row["order"] == "pure locality"]
    summary["throughput_share_of_locality"] = min(
        row["throughput_share_of_locality"] for row in fair
    )
    summary["max_service_gap_over_bound"] = max(row["gap_over_bound"] for row in fair)
    summary["service_gap_over_bound_pure_locality"] = max(r["gap_over_bound"] for r in local)
    for key in (WAIT, FIRST_TOKEN):
        summary[key] = max(row[key] or 0.0 for row in fair)
        summary[f"{key}_pure_locality"] = max(row[key] or 0.0 for row in local)
    off = [row["off_scheduler"] for row in fair if row["off_scheduler"] is not None]
    if off:
        summary["max_difference_from_scheduler"] = max(off)
    return Record(repeats=1, summary=summary, rows=rows)


def _row(scenario: Scenario, order: str, config: SchedConfig) -> dict[str, Any]:
    outcome = run(scenario, config)
    bound, bound_ever = bounds(scenario, outcome, config)
    row = {
        "scenario": scenario.name,
        "order": order,
        "requests": len(scenario.arrivals),
        "makespan_s": outcome.makespan_s,
        "prompt_tokens_computed": outcome.account.num_prompt_computed,
        "gap": outcome.any_interval_gap,
        "gap_since_both_wait": outcome.gap,
        "owed": outcome.owed,
        "bound": bound,
        "bound_ever": bound_ever,
        "gap_over_bound": outcome.any_interval_gap / bound,
        "p99_wait_s": _p99(np.concatenate(list(outcome.account.waits_s.values())).tolist()),
        "off_scheduler": outcome.off_scheduler,
        "cold_p99_wait_s": None,
        "fair_share_p99_wait_s": None,
        WAIT: None,
        FIRST_TOKEN: None,
    }
    if scenario.cold is not None:
        wait_s, token_s = outcome.p99_s(scenario.cold)
        share_wait_s, share_token_s = fair_share_p99_s(scenario, config)
        row["cold_p99_wait_s"], row["fair_share_p99_wait_s"] = wait_s, share_wait_s
        row[WAIT], row[FIRST_TOKEN] = wait_s / share_wait_s, token_s / share_token_s
    return row


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args()
    report(measure(0.25 if flags.quick else 1.0, flags.seed), flags.json)


if __name__ == "__main__":
    main()
