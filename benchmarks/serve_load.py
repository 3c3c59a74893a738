"""A server under many streams: nothing lost, nothing mixed up, nothing left over.

tabletop behind `mmserve serve` in processes of its own; calls are questions about generated
pictures. First every question is asked alone. Then so many streams are kept open until all
calls have ended: some clients leave amid an endless answer, some calls are wrong. Checked:

    ends       every call that was accepted ends exactly once
    answers    each is, to the letter, what the same question got alone
    metrics    the server counts the same calls, ends and refusals as the client
    slots      free + cached = all, nothing runs, waits or is held
    memory     resident memory of all processes, from a quarter of the calls to their end

Beside it: the highest rate of open arrivals with p99 TTFT under a second, the HTTP layer's own
cost (`serve_api_cost`), and bad picture hosts (`serve_hosts`). `--kill` ends the engine's
process once amid streams, if it is one of its own.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from benchmarks.open_loop import arrivals_s, rate_at
from benchmarks.record import Record, report
from benchmarks.serve_api_cost import api_rows, api_summary
from benchmarks.serve_asks import Ask, Shown, draw_asks, scenes, swap_seen_share
from benchmarks.serve_calls import CHAT, Ended, play_at, play_closed
from benchmarks.serve_hosts import hosts_rows, hosts_summary
from benchmarks.serve_process import ServeProcess
from mmserve.core import series_key

__all__ = ["Load", "check_counts", "grown_share", "measure"]

PARTS = ("load", "rate", "api", "hosts")
_TTFT_LIMIT_S = 1.0
_SHARES = (0.4, 0.6, 0.8, 1.0, 1.2, 1.5, 1.9, 2.4, 3.0)
"""Rates, of what the load reached, until one is too high."""
_SEED = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much is asked.

    Args:
        requests: in the load.
        streams: kept open at once.
        pictures: different ones; each has some ten questions.
        left_share, refused_share: of the requests.
        rate_requests: at each rate.
        api_requests: for each cost of the HTTP layer.
        host_requests: in each round beside bad hosts.
        repeats: rounds of the costs and the hosts.
    """

    requests: int = 20_000
    streams: int = 500
    pictures: int = 200
    left_share: float = 0.05
    refused_share: float = 0.02
    rate_requests: int = 600
    api_requests: int = 400
    host_requests: int = 200
    repeats: int = 5


QUICK = Load(
    requests=300,
    streams=50,
    pictures=12,
    rate_requests=30,
    api_requests=50,
    host_requests=30,
    repeats=2,
)
_VICTIMS = 24


class MemoryWatch:
    """Resident memory beside the share of calls that have ended. Mutable while it watches."""

    def __init__(self, server: ServeProcess, total: int) -> None:
        self.samples: list[tuple[float, float]] = []
        self._server, self._total = server, total
        self._ended = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def move(self, ended: int) -> None:
        """Say how many calls have ended. Changes: the share of later samples."""
        self._ended = ended

    def _watch(self) -> None:
        while not self._is_over.wait(0.2):
            self.samples.append((self._ended / self._total, self._server.resident_mib()))


def grown_share(samples: Sequence[tuple[float, float]]) -> float:
    """Memory at the end over memory after a quarter, less 1; medians of a tenth each. Pure."""

    def around(low: float, high: float) -> float:
        found = [mib for share, mib in samples if low <= share <= high]
        return median(found) if found else median(mib for _, mib in samples)

    return around(0.9, 1.0) / around(0.2, 0.3) - 1


def ask_alone(server: ServeProcess, shown: Sequence[Shown]) -> list[Shown]:
    """What the server says to each question while nothing else is asked."""
    ended = play_closed(server.url, [Ask("answered", one.body()) for one in shown], 1)
    failed = [one for one in ended if not one.is_clean]
    if failed:
        raise SystemExit(f"a question failed alone: {failed[0]}")
    return [replace(one, said=end.text) for one, end in zip(shown, ended, strict=True)]


def check_counts(
    before: Mapping[str, float], after: Mapping[str, float], ended: Sequence[Ended]
) -> dict[str, float]:
    """By how much the server's counts are off the client's, by series. Pure."""
    statuses = [one.status for one in ended]
    wanted = {
        series_key("http_requests_total", route=CHAT, status=str(status)): statuses.count(
            status
        )
        for status in set(statuses)
    }
    reasons = [reason for one in ended for reason in one.reasons if one.status == 200]
    wanted |= {
        series_key("finished_total", reason=reason): reasons.count(reason)
        for reason in ("stop", "length")
    }
    wanted[series_key("finished_total", reason="abort")] = sum(
        one.ask.kind == "left" and one.status == 200 for one in ended
    )
    return {
        name: after.get(name, 0) - before.get(name, 0) - count for name, count in wanted.items()
    }


def load_part(
    server: ServeProcess, shown: Sequence[Shown], load: Load
) -> tuple[dict[str, float], list[dict[str, Any]], list[str]]:
    """The load and its checks: summary, rows, and what was wrong."""
    asks = draw_asks(
        shown,
        load.requests,
        left_share=load.left_share,
        refused_share=load.refused_share,
        seed=_SEED,
    )
    before = server.wait_idle()
    start = time.perf_counter()
    with MemoryWatch(server, len(asks)) as watch:
        ended = play_closed(server.url, asks, load.streams, watch.move)
        seconds = time.perf_counter() - start
    after = server.wait_idle()
    off = check_counts(before, after, ended)
    answered = [one for one in ended if one.ask.kind == "answered"]
    unclean = [one for one in ended if not one.is_clean]
    wrong = [one for one in answered if one.is_clean and one.text != one.ask.expected]
    slots_off = after["slots"] - after["slots_free"] - after["slots_cached"]
    left_over = sum(after[name] for name in ("running", "waiting", "slots_held"))
    faults = [f"{one.ask.kind}: {_told(one)}" for one in unclean]
    faults += [f"said {one.text!r} instead of {one.ask.expected!r}" for one in wrong]
    faults += [f"{name} is off by {value:g}" for name, value in off.items() if value]
    faults += [f"{slots_off:g} slots are unaccounted for"] if slots_off else []
    faults += [f"{left_over:g} sequences and slots are left over"] if left_over else []
    firsts = [one.first_s for one in answered if one.first_s is not None]
    summary = {
        "requests": len(ended),
        "streams": load.streams,
        "requests_per_s": len(ended) / seconds,
        "wrong_ends": len(unclean),
        "wrong_answers": len(wrong),
        "swap_seen_share": swap_seen_share([one.ask.expected for one in answered]),
        "metrics_off": sum(map(abs, off.values())),
        "slots_off": abs(slots_off) + left_over,
        "memory_grown_share": grown_share(watch.samples),
        "load_ttft_p50_s": float(np.percentile(firsts, 50)) if firsts else 0.0,
    }
    every = max(1, len(watch.samples) // 50)
    rows = [
        {"measured": "memory", "ended_share": round(share, 3), "resident_mib": round(mib, 1)}
        for share, mib in watch.samples[::every]
    ]
    rows += [
        {
            "measured": "calls",
            "kind": kind,
            "calls": sum(one.ask.kind == kind for one in ended),
            "wrong": sum(one.ask.kind == kind for one in (*unclean, *wrong)),
        }
        for kind in ("answered", "left", "refused")
    ]
    return summary, rows, faults


def _told(one: Ended) -> str:
    return (
        f"status {one.status}, {one.num_ends} ends, {one.num_done} done, "
        f"more {one.has_more}, {one.error or 'no error'}"
    )


def rate_part(
    server: ServeProcess, shown: Sequence[Shown], capacity: float, load: Load
) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """Open arrivals at shares of the capacity, and the rate at which p99 TTFT is a second.

    The pictures were seen before, and share their cached tokens; questions come by lot. If no
    rate has passed the limit, the one that is told is the highest played.
    """
    rows: list[dict[str, Any]] = []
    for number, share in enumerate(_SHARES):
        asks = draw_asks(
            shown, load.rate_requests, left_share=0, refused_share=0, seed=_SEED + number
        )
        streamed = [replace(ask, body=ask.body | {"stream": True}) for ask in asks]
        rate = share * capacity
        ended = play_at(server.url, streamed, list(arrivals_s(rate, len(asks), number)))
        server.wait_idle()
        firsts = [one.first_s for one in ended if one.first_s is not None]
        failed = sum(not one.is_clean for one in ended)
        rows.append(
            {
                "measured": "rate",
                "rate_per_s": rate,
                "failed": failed,
                "ttft_p50_ms": float(np.percentile(firsts, 50)) * 1e3 if firsts else 0.0,
                "ttft_p99_ms": float(np.percentile(firsts, 99)) * 1e3 if firsts else 0.0,
            }
        )
        if failed or rows[-1]["ttft_p99_ms"] > _TTFT_LIMIT_S * 1e3:
            break
    rates = [row["rate_per_s"] for row in rows]
    values = [np.inf if row["failed"] else row["ttft_p99_ms"] for row in rows]
    limit_ms = _TTFT_LIMIT_S * 1e3
    found = {
        "rate_at_1s_ttft_p99": rate_at(limit_ms, rates, values),
        "rate_has_passed_limit": float(max(values) > limit_ms),
    }
    return found, rows


def kill_part(
    server: ServeProcess, shown: Sequence[Shown], load: Load
) -> tuple[dict[str, float], list[str]]:
    """Kill the engine amid streams: each call ends once, and the server comes back."""
    engine = server.engine()
    if engine is None:
        print("--kill: this server has no engine process of its own", file=sys.stderr)
        return {}, []
    restarts = server.series().get("engine_restarts_total", 0)
    asks = draw_asks(shown, 4 * load.streams, left_share=0, refused_share=0, seed=_SEED + 1)
    killed = threading.Event()

    def kill(ended: int) -> None:
        if ended >= load.streams and not killed.is_set():
            killed.set()
            engine.kill()

    ended = play_closed(server.url, asks, load.streams, kill)
    recovered_s = server.wait_ready()
    lost = [one for one in ended if one.num_ends != 1]
    wrong = [one for one in ended if one.is_clean and one.text != one.ask.expected]
    again = play_closed(server.url, asks[: load.streams], load.streams)
    unwell = [one for one in again if not one.is_clean or one.text != one.ask.expected]
    restarted = server.series().get("engine_restarts_total", 0) - restarts
    summary = {
        "kill_failed_calls": sum(not one.is_clean for one in ended),
        "kill_lost_calls": len(lost),
        "kill_recovered_s": recovered_s,
        "kill_restarts": restarted,
    }
    faults = [f"after the kill: {_told(one)}" for one in (*lost, *unwell)]
    faults += [f"beside the kill: said {one.text!r}" for one in wrong]
    faults += [] if restarted == 1 else [f"{restarted:g} restarts are counted, there was 1"]
    return summary, faults


def measure(load: Load, parts: Sequence[str], *, has_kill: bool) -> tuple[Record, list[str]]:
    """The record of a run, and what was wrong."""
    summary: dict[str, float] = {}
    rows: list[dict[str, Any]] = []
    faults: list[str] = []
    if "load" in parts:
        with ServeProcess() as server:
            shown = ask_alone(server, scenes(load.pictures))
            summary["right_share"] = sum(one.said == one.truth for one in shown) / len(shown)
            found, more, faults = load_part(server, shown, load)
            summary |= found
            rows += more
            if "rate" in parts:
                found, more = rate_part(server, shown, summary["requests_per_s"], load)
                summary |= found
                rows += more
            if has_kill:
                found, wrong = kill_part(server, shown, load)
                summary |= found
                faults += wrong
    if "api" in parts:
        costs = api_rows(load.api_requests, load.repeats)
        summary |= api_summary(costs)
        rows += costs
    if "hosts" in parts:
        rounds = hosts_rows(
            repeats=load.repeats, num_asked=load.host_requests, num_victims=_VICTIMS
        )
        summary |= hosts_summary(rounds)
        rows += rounds
        wrong_hosts = summary["bad_hosts_wrong"]
        faults += (
            [f"{wrong_hosts:g} calls beside bad hosts ended wrongly"] if wrong_hosts else []
        )
    summary["violations"] = len(faults)
    return Record(repeats=load.repeats, summary=summary, rows=rows), faults


def main() -> None:
    """Parse flags, measure, report; exit 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="a few hundred requests")
    parser.add_argument("--requests", type=int, help="in the load")
    parser.add_argument("--streams", type=int, help="kept open at once")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="not all parts")
    parser.add_argument("--kill", action="store_true", help="kill the engine's process once")
    flags = parser.parse_args()
    load = QUICK if flags.quick else Load()
    given = {
        name: value
        for name in ("requests", "streams")
        if (value := getattr(flags, name)) is not None
    }
    record, faults = measure(replace(load, **given), flags.only, has_kill=flags.kill)
    report(record, flags.json)
    for fault in faults[:20]:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
