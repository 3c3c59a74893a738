"""Open-loop load over HTTP: latency against rate, mmserve beside transformers' own server.

SmolLM2-135M; a request is a prefix that all share, words of its own, and a greedy answer of
fixed length. Requests come by a Poisson process whether or not earlier ones are answered. Each
server is first given all requests at once, which tells its capacity; then shares of it are
played as rates. A round starts each server anew, so nothing is cached; percentiles are over the
requests of all rounds. The limit of p99 TTFT is the same for all: five times what transformers'
server takes for one request alone. The knee is the rate at which p99 TTFT passes it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks.elsewhere import Watch
from benchmarks.engines import EngineAbsent, EngineFailed, open_worker
from benchmarks.engines.export import checkpoint, export
from benchmarks.engines.worker import ENVIRONMENTS
from benchmarks.open_loop import Served, Wish, arrivals_s, play_open_loop, rate_at
from benchmarks.record import Record, report
from benchmarks.serve_rate_plot import plot
from mmserve.core import default_threads

MODEL = "smollm2-135m"
OURS, REFERENCE = "mmserve", "transformers-serve"
ENGINES = (OURS, REFERENCE, "vllm", "llama.cpp")
LIMIT_OF_ALONE = 5.0
_GREEDY = '{"do_sample": false, "eos_token_id": -1, "pad_token_id": 0, "max_new_tokens": %d}'
_NUM_ALONE = 3
_MODELS = ENVIRONMENTS / "models"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is sent.

    Args:
        shared_tokens: of the prefix that all requests have.
        own_tokens: of a request's own words.
        answer_tokens: of each answer.
        shares: rates, as shares of a server's capacity.
        seconds: about how long a rate is played.
        least_requests: played at each rate, however long it takes.
        repeats: rounds.
    """

    shared_tokens: int = 256
    own_tokens: int = 32
    answer_tokens: int = 32
    shares: Sequence[float] = (0.3, 0.5, 0.7, 0.9, 1.1, 1.4, 1.8)
    seconds: float = 40.0
    least_requests: int = 20
    repeats: int = 5


QUICK = Load(
    shared_tokens=64,
    own_tokens=8,
    answer_tokens=4,
    shares=(0.5, 1.2),
    seconds=4.0,
    least_requests=4,
    repeats=1,
)


@dataclass(slots=True)
class Ladder:
    """All that one engine was asked and gave. Mutable while rounds are played.

    `rates` are requests a second by share of capacity, of the first round; later rounds play
    the same.
    """

    alone_s: list[float] = field(default_factory=list)
    capacities: list[float] = field(default_factory=list)
    rates: dict[float, float] = field(default_factory=dict)
    served: dict[float, list[Served]] = field(default_factory=lambda: defaultdict(list))
    elsewhere: dict[float, list[float]] = field(default_factory=lambda: defaultdict(list))


class Asker:
    """Draws prompts of whole words. Mutable: no two prompts go on alike behind the prefix."""

    def __init__(self, directory: Path, load: Load) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(directory)
        self._random = np.random.default_rng(0)
        pieces = self._tokenizer.convert_ids_to_tokens(list(range(len(self._tokenizer))))
        words = [piece[1:] for piece in pieces if piece.startswith("Ġ") and len(piece) > 3]
        self._words = [word for word in words if word.isascii() and word.islower()]
        self._load = load
        self._prefix = self._draw(load.shared_tokens)

    def wishes(self, engine: str, model: str, count: int) -> list[Wish]:
        """Requests in the words of one server. Changes: the generator."""
        num_answer = self._load.answer_tokens
        extra: dict[str, Any] = {"ignore_eos": True}
        if engine == REFERENCE:
            extra = {"generation_config": _GREEDY % num_answer}
        return [
            Wish(
                f"{self._prefix} {self._draw(self._load.own_tokens)}", num_answer, model, extra
            )
            for _ in range(count)
        ]

    def _draw(self, num_words: int) -> str:
        return " ".join(self._random.choice(self._words, num_words))


def play_round(engine: str, ladder: Ladder, asker: Asker, load: Load, number: int) -> None:
    """Start a server, find its capacity, play all rates, end it. Changes: the ladder.

    Raises EngineAbsent, EngineFailed.
    """
    directory = export(engine, MODEL, _MODELS)
    log = ENVIRONMENTS / "logs" / f"serve rate, {engine}.log"
    with open_worker(engine, log=log) as worker:
        worker.load(directory, threads=default_threads(), options={"serve_only": True})
        url = worker.serve()
        name = str(directory) if engine != OURS else directory.name

        def play(rate: float | None, count: int) -> list[Served]:
            wishes = asker.wishes(engine, name, count)
            at_s = np.zeros(count) if rate is None else arrivals_s(rate, count, number)
            done = play_open_loop(url, wishes, at_s)
            error = next((one.error for one in done if one.error), "")
            if error:
                print(f"{engine}: {error}", file=sys.stderr)
            return done

        for _ in range(1 + _NUM_ALONE):
            alone = play(None, 1)[0]
            if alone.first_s is None:
                raise EngineFailed(f"{engine} does not answer: {alone.error}")
            ladder.alone_s.append(alone.first_s)
        del ladder.alone_s[-1 - _NUM_ALONE]  # the first call of a server takes longer
        start = time.perf_counter()
        play(None, load.least_requests)
        ladder.capacities.append(load.least_requests / (time.perf_counter() - start))
        if not ladder.rates:
            ladder.rates = {share: share * ladder.capacities[0] for share in load.shares}
        for share, rate in ladder.rates.items():
            watch = Watch.start()
            count = max(load.least_requests, round(rate * load.seconds))
            ladder.served[share] += play(rate, count)
            ladder.elsewhere[share].append(watch.elsewhere_cores())
            print(f"round {number + 1}, {engine}, {rate:.2f} a second", file=sys.stderr)


def ladder_rows(engine: str, ladder: Ladder) -> list[dict[str, Any]]:
    """A row a rate: percentiles over the requests of all rounds, empty if none came. Pure.

    ttft to the first text, itl between two pieces of text, e2e to the end, and how late a
    request was sent, all but itl from when it was due.
    """
    rows = []
    for share, rate in ladder.rates.items():
        served = ladder.served[share]
        good = [one for one in served if not one.error]
        gaps = [gap for one in good for gap in one.gaps_s]
        row = {
            "engine": engine,
            "share_of_capacity": share,
            "rate_per_s": rate,
            "requests": len(served),
            "failed": len(served) - len(good),
        }
        for name, values in (
            ("ttft", [one.first_s for one in good]),
            ("itl", gaps),
            ("e2e", [one.end_s for one in good]),
            ("late", [one.late_s for one in good]),
        ):
            for percent in (50, 99):
                row[f"{name}_p{percent}_ms"] = (
                    float(np.percentile(values, percent) * 1e3) if values else ""
                )
        row["busy_elsewhere_cores"] = round(median(ladder.elsewhere[share]), 2)
        rows.append(row)
    return rows


def knee(rows: Sequence[Mapping[str, Any]], limit_ms: float) -> float:
    """Requests a second at which p99 TTFT passes the limit; see `rate_at`. Pure."""
    values = [np.inf if row["failed"] else row["ttft_p99_ms"] for row in rows]
    return rate_at(limit_ms, [row["rate_per_s"] for row in rows], values)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRecord(Record):
    """A record with the limit that knees are told for, and each server's own figures."""

    limit_ms: float
    servers: Sequence[Mapping[str, Any]]


def measure(engines: Sequence[str], load: Load) -> RateRecord:
    """All engines, round by round."""
    asker = Asker(checkpoint(MODEL, _MODELS), load)
    ladders: dict[str, Ladder] = {name: Ladder() for name in engines}
    failed: dict[str, str] = {}
    for number in range(load.repeats):
        first = number % len(engines)
        for name in (*engines[first:], *engines[:first]):
            if name in failed:
                continue
            try:
                play_round(name, ladders[name], asker, load, number)
            except (EngineAbsent, EngineFailed) as error:
                failed[name] = str(error)
                print(f"{name}: {error}", file=sys.stderr)
    played = {name: one for name, one in ladders.items() if name not in failed}
    if not played:
        raise SystemExit(f"no server ran: {failed}")
    rows = {name: ladder_rows(name, one) for name, one in played.items()}
    yardstick = played.get(REFERENCE) or next(iter(played.values()))
    limit_ms = LIMIT_OF_ALONE * median(yardstick.alone_s) * 1e3
    servers = [
        {
            "engine": name,
            "alone_ttft_ms": median(one.alone_s) * 1e3,
            "capacity_per_s": median(one.capacities),
            "knee_per_s": knee(rows[name], limit_ms),
            "has_passed_limit": any(
                row["failed"] or row["ttft_p99_ms"] > limit_ms for row in rows[name]
            ),
        }
        for name, one in played.items()
    ]
    return RateRecord(
        repeats=load.repeats,
        summary=summary_of(servers, limit_ms),
        rows=[
            *(row for some in rows.values() for row in some),
            *({"engine": name, "not_run": reason} for name, reason in failed.items()),
        ],
        limit_ms=limit_ms,
        servers=servers,
    )


def summary_of(servers: Sequence[Mapping[str, Any]], limit_ms: float) -> dict[str, float]:
    """Our knee over each other's, at the same p99 TTFT. Pure."""
    table = {row["engine"]: row for row in servers}
    found = {"limit_ttft_p99_ms": limit_ms}
    if OURS not in table:
        return found
    ours = table[OURS]
    found |= {"rate_at_limit": ours["knee_per_s"], "capacity": ours["capacity_per_s"]}
    for name, row in table.items():
        if name == OURS:
            continue
        is_reference = name == REFERENCE
        ending = "" if is_reference else f"_of_{name.replace('.', '_')}"
        found[f"rate_ratio_at_same_p99_ttft{ending}"] = ours["knee_per_s"] / row["knee_per_s"]
        found[f"capacity_ratio{ending}"] = ours["capacity_per_s"] / row["capacity_per_s"]
    return found


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="write a picture (SVG)")
    parser.add_argument("--quick", action="store_true", help="few short requests, one round")
    parser.add_argument("--repeats", type=int, help="rounds")
    parser.add_argument("--seconds", type=float, help="about how long a rate is played")
    parser.add_argument("--shared-tokens", type=int, help="0: requests share nothing")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=[OURS, REFERENCE])
    flags = parser.parse_args()
    load = QUICK if flags.quick else Load()
    given = {
        name: value
        for name in ("repeats", "seconds", "shared_tokens")
        if (value := getattr(flags, name)) is not None
    }
    record = measure(flags.engines, replace(load, **given))
    report(record, flags.json)
    if flags.plot is not None:
        plot(record.rows, record.limit_ms, flags.plot)


if __name__ == "__main__":
    main()
