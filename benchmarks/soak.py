"""The scheduler under random load for as long as you like, with every promise checked.

Runs the machine of the tests (`tests/plan/sched/machine.py`) over one seed after the other: a
random configuration and load each, with aborts, failures and pixels that come late or never.
After every step: budgets, ledgers, order, rounds, charges and accounts; at the end of each seed
every answer against the answer alone. The target is no violation.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.record import Record, report

_TESTS = Path(__file__).parents[1] / "tests"
_SHOWN = ("steps", "sequences", "aborts", "stops", "retractions", "evicted tokens")


def soak(num_steps: int, first_seed: int) -> tuple[dict[str, Counter[str]], list[str]]:
    """What happened, by policy, in at least so many steps; violations as text."""
    if str(_TESTS) not in sys.path:
        sys.path.insert(0, str(_TESTS))
    machines = importlib.import_module("plan.sched.machine")
    by_policy: dict[str, Counter[str]] = {}
    violations: list[str] = []
    num_left, seed = num_steps, first_seed
    while num_left > 0:
        load = random.Random(seed)
        machine = machines.Machine(seed, num_steps=load.choice([40, 100, 300]))
        try:
            machine.run()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and named
            violations.append(f"seed {seed}: {type(error).__name__}: {error}")
        counts = by_policy.setdefault(machine.config.policy, Counter())
        counts += machine.counts
        counts["runs"] += 1
        num_left -= machine.counts["steps"]
        seed += 1
    return by_policy, violations


def measure(num_steps: int, first_seed: int) -> tuple[Record, list[str]]:
    """The record of a run, and its violations."""
    start_s = time.monotonic()
    by_policy, violations = soak(num_steps, first_seed)
    totals: Counter[str] = sum(by_policy.values(), Counter())
    rows: list[dict[str, Any]] = [
        {"policy": policy, "runs": counts["runs"], **{name: counts[name] for name in _SHOWN}}
        for policy, counts in sorted(by_policy.items())
    ]
    summary = {
        "steps": totals["steps"],
        "runs": totals["runs"],
        "sequences": totals["sequences"],
        "aborts": totals["aborts"],
        "stops_from_outside": totals["stops"],
        "failed_steps": totals["failed steps"],
        "failed_rows": totals["failed rows"],
        "refused_pictures": totals["refused pictures"],
        "flushes": totals["flushes"],
        "retractions": totals["retractions"],
        "evicted_tokens": totals["evicted tokens"],
        "violations": len(violations),
        "wall_s": round(time.monotonic() - start_s, 1),
    }
    return Record(repeats=1, summary=summary, rows=rows), violations


def main() -> None:
    """Parse flags, run, report; exit 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--steps", type=int, default=200_000, help="least number of steps")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    flags = parser.parse_args()
    record, violations = measure(flags.steps, flags.seed)
    report(record, flags.json)
    for violation in violations[:20]:
        print(violation, file=sys.stderr)
    sys.exit(bool(violations))


if __name__ == "__main__":
    main()
