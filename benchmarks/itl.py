"""Inter-token latency of 4 running streams while long prompts and big pictures arrive.

A fixed work (streams, text prompts, pictures; each arrival wants one token) is done once with a
target of inter-token latency and once with each fixed chunk. Latencies count while arrivals are
being answered; throughput is all tokens of the work over the time until all of it is answered.

simulated  scheduler and FakeRunner under a hand clock; a step takes what a cost model says,
           with noise and pauses. Some pictures take longer than 1.5 targets by themselves.
real       an Engine on this machine with the seeded LLaVA of 60M parameters.

The target is twice a step of 4 decode rows plus the encoding of one picture of 576 patches, as
the cost model says or as measured first: a stream may wait for a picture and an ordinary step.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.image_qa import workload
from benchmarks.models import llava_60m
from benchmarks.record import Record, report
from mmserve.core import (
    BytesSource,
    EngineConfig,
    ForwardPlan,
    ImagePart,
    MediaSpan,
    Part,
    Prompt,
    Request,
    SampledTokens,
    SamplingParams,
    SchedConfig,
    Ticket,
    TokensPart,
)
from mmserve.engine import Engine
from mmserve.sched import Scheduler, SequenceSpec
from mmserve.testing.fake_runner import FakeRunner

CHUNKS = (64, 128, 256, 512, 1024)
NUM_STREAMS = 4
STREAM_PROMPT = 64
QUESTION_TOKENS = 24
PICTURE_TOKENS = 576
VOCAB_SIZE = 32000
LIMIT = 1.5


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that comes at `at_s`: text, or a picture of `num_patches` and a question."""

    at_s: float
    num_tokens: int
    num_patches: int = 0


@dataclass(slots=True)
class Run:
    """What came of the work under one setting; times in seconds since its start."""

    tokens_s: dict[int, list[float]] = field(default_factory=dict)
    """Stream to the times of its tokens."""
    arrived_s: dict[int, float] = field(default_factory=dict)
    answered_s: dict[int, float] = field(default_factory=dict)
    end_s: float = 0.0

    def gaps_ms(self) -> np.ndarray:
        """Times between two tokens of a stream until the last arrival was answered. Pure."""
        last_s = max(self.answered_s.values())
        parts = [np.array(times) for times in self.tokens_s.values()]
        return np.concatenate([np.diff(p[p <= last_s]) for p in parts]) * 1e3


def arrivals(num_texts: int, sizes: list[int], over_s: float, seed: int = 0) -> list[Arrival]:
    """Texts of 1000 to 3000 tokens and pictures of `sizes` patches at random times. Pure."""
    random = np.random.default_rng(seed)
    times = random.uniform(0, over_s, num_texts + len(sizes))
    texts = [Arrival(t, int(random.integers(1000, 3001))) for t in times[:num_texts]]
    pictures = [
        Arrival(t, 1 + PICTURE_TOKENS + QUESTION_TOKENS, size)
        for t, size in zip(times[num_texts:], sizes, strict=True)
    ]
    return sorted(texts + pictures, key=lambda arrival: arrival.at_s)


def settings(target_ms: float) -> dict[str, SchedConfig]:
    """The target alone, and each fixed chunk beside 4 decode rows."""
    fixed = {
        f"chunk {chunk}": SchedConfig(chunk_tokens=chunk, max_step_tokens=chunk + NUM_STREAMS)
        for chunk in CHUNKS
    }
    return {f"target {target_ms:.0f} ms": SchedConfig(target_itl_ms=target_ms), **fixed}


# --- simulated ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds a step takes, near those of the real part on two cores.

    Args:
        pair_ms: of a prompt token with a token before it.
        noise: standard deviation of the logarithm of a step's time.
        pause_share: steps that take three times as long for no reason.
    """

    step_ms: float = 10.0
    row_ms: float = 1.2
    token_ms: float = 0.18
    pair_ms: float = 1e-4
    patch_ms: float = 0.24
    noise: float = 0.1
    pause_share: float = 0.002

    @property
    def target_ms(self) -> float:
        """See the head of this file."""
        return 2 * (self.step_ms + NUM_STREAMS * self.row_ms) + PICTURE_TOKENS * self.patch_ms

    def forward_ms(self, plan: ForwardPlan) -> float:
        """Without noise. Pure."""
        total = self.step_ms
        for row in plan.rows:
            num = len(row.token_ids)
            pairs = num * (row.start + num / 2)
            total += self.row_ms if num == 1 else self.token_ms * num + self.pair_ms * pairs
        return total


class Simulation:
    """The work under one setting, step by step."""

    def __init__(self, config: SchedConfig, costs: Costs, work: list[Arrival]) -> None:
        self.now_s = 0.0
        self.run = Run()
        self._costs = costs
        self._work = work
        self._random = np.random.default_rng(1)
        self._patches: dict[bytes, int] = {}
        num_slots = 65536
        self._runner = FakeRunner(num_slots, 128)
        self._scheduler = Scheduler(
            config,
            num_slots=num_slots,
            context_length=8192,
            vocab_size=128,
            clock=lambda: self.now_s,
        )

    def go(self, stream_tokens: int) -> Run:
        """Until all is answered."""
        for number in range(NUM_STREAMS):
            self._add(number, Arrival(0.0, STREAM_PROMPT), stream_tokens)
            self.run.tokens_s[number] = []
        num_open, numbers = NUM_STREAMS + len(self._work), itertools.count(NUM_STREAMS)
        coming = list(reversed(self._work))
        while num_open:
            while coming and coming[-1].at_s <= self.now_s:
                number = next(numbers)
                self.run.arrived_s[number] = coming[-1].at_s
                self._add(number, coming.pop(), 1)
            plan = self._plan()
            if plan is None:
                self.now_s = coming[-1].at_s
                continue
            num_open -= self._land(plan)
        self.run.end_s = self.now_s
        return self.run

    def _add(self, number: int, arrival: Arrival, num_new: int) -> None:
        ids = self._random.integers(1, 127, arrival.num_tokens)
        spans: tuple[MediaSpan, ...] = ()
        if arrival.num_patches:
            digest = number.to_bytes(16)
            self._patches[digest] = arrival.num_patches
            spans = (MediaSpan(digest, 1, PICTURE_TOKENS, "image"),)
        sampling = SamplingParams(max_new_tokens=num_new, temperature=0.0)
        prompt = Prompt(ids, spans)
        spec = SequenceSpec(
            sequence_id=number, prompt=prompt, sampling=sampling, seed=0, eos_token_ids=()
        )
        self._scheduler.add(spec)

    def _plan(self) -> ForwardPlan | None:
        """As in the engine, but pixels are there at once."""
        plan = self._scheduler.plan()
        wanted = self._scheduler.wanted()
        for digest in wanted:
            self._scheduler.provide(digest, {}, num_patches=self._patches[digest])
        return self._scheduler.plan() if plan is None and wanted else plan

    def _land(self, plan: ForwardPlan) -> int:
        """Run a step; how many sequences have ended."""
        rows = self._runner.execute(plan).rows
        num_patches = sum(self._patches[item.digest] for item in plan.encode)
        forward_ms = self._noisy(self._costs.forward_ms(plan))
        encode_ms = self._noisy(self._costs.patch_ms * num_patches)
        self.now_s += (forward_ms + encode_ms) / 1e3
        num_ended = 0
        for update in self._scheduler.commit(
            SampledTokens(plan.step, rows, encode_ms, forward_ms)
        ):
            number = update.sequence_id
            if number < NUM_STREAMS:
                self.run.tokens_s[number].append(self.now_s)
            else:
                self.run.answered_s[number] = self.now_s
            num_ended += update.finish is not None
        return num_ended

    def _noisy(self, cost_ms: float) -> float:
        is_pause = self._random.random() < self._costs.pause_share
        factor = math.exp(self._random.normal(0.0, self._costs.noise))
        return cost_ms * factor * (3.0 if is_pause else 1.0)


# --- real -----------------------------------------------------------------------------------


class Rig:
    """Engines on this machine, one at a time, and the prompts they get."""

    def __init__(self, directory: Path, work: list[Arrival], threads: int | None) -> None:
        self._config = EngineConfig(model=str(directory), threads=threads)
        self._work = work
        random = np.random.default_rng(2)
        num_pictures = sum(arrival.num_patches > 0 for arrival in work)
        pictures = iter(workload(num_pictures + 2, 1, VOCAB_SIZE).pictures)
        self._spare = [next(pictures), next(pictures)]
        self._streams = [_text(random, STREAM_PROMPT) for _ in range(NUM_STREAMS)]
        self._parts: list[tuple[Part, ...]] = [
            (ImagePart(BytesSource(next(pictures))), *_text(random, QUESTION_TOKENS))
            if arrival.num_patches
            else _text(random, arrival.num_tokens)
            for arrival in work
        ]

    def target_ms(self) -> float:
        """Twice the median gap of 4 streams alone, plus the encoding of a picture."""
        with self._engine(SchedConfig()) as engine:
            self._warm(engine)
            run = _Watch()
            tickets = [self._submit(engine, parts, 50) for parts in self._streams]
            run.read(dict(enumerate(tickets)), run.run.tokens_s)
            gaps = [np.diff(times)[5:] for times in run.run.tokens_s.values()]
            image = ImagePart(BytesSource(self._spare[1]))
            last = list(self._submit(engine, (image, TokensPart((5,))), 1).outputs())[-1]
        return 2e3 * float(np.median(np.concatenate(gaps))) + last.timing.encode

    def go(self, config: SchedConfig, stream_tokens: int) -> Run:
        """The work under one setting."""
        with self._engine(config) as engine:
            self._warm(engine)
            watch = _Watch()
            streams = {
                i: self._submit(engine, parts, stream_tokens)
                for i, parts in enumerate(self._streams)
            }
            readers = watch.start(streams, watch.run.tokens_s)
            watch.wait_for_streams()
            for number, arrival in enumerate(self._work):
                time.sleep(max(0.0, arrival.at_s - watch.now_s()))
                watch.run.arrived_s[number] = watch.now_s()
                ticket = self._submit(engine, self._parts[number], 1)
                readers += watch.start({number: ticket}, watch.answers)
            for reader in readers:
                reader.join()
        watch.run.answered_s = {n: times[-1] for n, times in watch.answers.items()}
        watch.run.end_s = watch.now_s()
        return watch.run

    def _engine(self, config: SchedConfig) -> Engine:
        return Engine.from_config(replace(self._config, sched=config))

    def _warm(self, engine: Engine) -> None:
        """First calls take longer: a picture and a text beside each other."""
        image = ImagePart(BytesSource(self._spare[0]))
        tickets = [
            self._submit(engine, (image, TokensPart((7, 8))), 4),
            self._submit(engine, (TokensPart(tuple(range(300, 900))),), 4),
        ]
        for ticket in tickets:
            list(ticket.outputs())

    def _submit(self, engine: Engine, parts: tuple[Part, ...], num_new: int) -> Ticket:
        sampling = SamplingParams(max_new_tokens=num_new, temperature=0.0, ignore_eos=True)
        return engine.submit(Request(request_id="", parts=parts, sampling=sampling))


class _Watch:
    """Reads tickets, each in a thread, and keeps the times of their tokens."""

    def __init__(self) -> None:
        self.run = Run()
        self.answers: dict[int, list[float]] = {}
        self._began_s = time.perf_counter()

    def now_s(self) -> float:
        return time.perf_counter() - self._began_s

    def start(
        self, tickets: dict[int, Ticket], into: dict[int, list[float]]
    ) -> list[threading.Thread]:
        threads = []
        for number, ticket in tickets.items():
            times = into.setdefault(number, [])
            threads.append(threading.Thread(target=self._read, args=(ticket, times)))
            threads[-1].start()
        return threads

    def read(self, tickets: dict[int, Ticket], into: dict[int, list[float]]) -> None:
        for thread in self.start(tickets, into):
            thread.join()

    def wait_for_streams(self) -> None:
        """Until every stream has begun; time counts from here."""
        while not all(len(times) > 1 for times in self.run.tokens_s.values()):
            time.sleep(0.01)
        began_s = time.perf_counter()
        for times in self.run.tokens_s.values():
            times.clear()
        self._began_s = began_s

    def _read(self, ticket: Ticket, times: list[float]) -> None:
        for output in ticket.outputs():
            times.extend([self.now_s()] * len(output.token_ids))


def _text(random: np.random.Generator, num_tokens: int) -> tuple[Part, ...]:
    return (TokensPart(tuple(map(int, random.integers(300, VOCAB_SIZE, num_tokens)))),)


# --- both -----------------------------------------------------------------------------------


def compare(
    part: str,
    target_ms: float,
    work: list[Arrival],
    stream_tokens: int,
    go: Callable[[SchedConfig], Run],
) -> list[dict[str, Any]]:
    """A row for each setting, the target first."""
    num_tokens = NUM_STREAMS * (STREAM_PROMPT + stream_tokens)
    num_tokens += sum(arrival.num_tokens + 1 for arrival in work)
    rows = []
    for name, config in settings(target_ms).items():
        run = go(config)
        gaps = run.gaps_ms()
        waits = [run.answered_s[n] - at_s for n, at_s in run.arrived_s.items()]
        rows.append(
            {
                "part": part,
                "setting": name,
                "itl_p50_ms": float(np.median(gaps)),
                "itl_p99_ms": float(np.percentile(gaps, 99)),
                "itl_max_ms": float(gaps.max()),
                "over_limit": float((gaps > LIMIT * target_ms).mean()),
                "seconds": run.end_s,
                "tokens_per_s": num_tokens / run.end_s,
                "answer_p50_s": float(np.median(waits)),
                "answers_done_s": max(run.answered_s.values()),
            }
        )
        print(f"{part}, {name}: {run.end_s:.1f} s", file=sys.stderr)
    return rows


def summarize(rows: list[dict[str, Any]], target_ms: float, ending: str) -> dict[str, float]:
    """The target's row against the fixed chunk of the highest throughput. Pure."""
    ours, *fixed = rows
    best = max(fixed, key=lambda row: row["tokens_per_s"])
    return {
        f"p99_itl_over_target{ending}": ours["itl_p99_ms"] / target_ms,
        f"throughput_share_of_best_chunk{ending}": ours["tokens_per_s"] / best["tokens_per_s"],
        f"p99_itl_over_target_of_best_chunk{ending}": best["itl_p99_ms"] / target_ms,
        f"target_ms{ending}": target_ms,
    }


def simulated(*, quick: bool) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Minutes of simulated time in seconds."""
    costs, scale = Costs(), 1 if quick else 6
    sizes = [PICTURE_TOKENS] * (40 * scale) + [4 * PICTURE_TOKENS] * (2 * scale)
    work = arrivals(30 * scale, sizes, 30.0 * scale)
    stream_tokens = 700 * scale

    def go(config: SchedConfig) -> Run:
        return Simulation(config, costs, work).go(stream_tokens)

    rows = compare("simulated", costs.target_ms, work, stream_tokens, go)
    return rows, summarize(rows, costs.target_ms, "_simulated")


def real(
    directory: Path, *, quick: bool, threads: int | None
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """About two minutes on two idle cores; the target comes from the first ten seconds."""
    scale = 2 if quick else 4
    work = arrivals(3 * scale, [PICTURE_TOKENS] * (5 * scale), 4.5 * scale)
    stream_tokens = 150 * scale
    rig = Rig(directory, work, threads)
    target_ms = rig.target_ms()
    rows = compare(
        "real", target_ms, work, stream_tokens, lambda config: rig.go(config, stream_tokens)
    )
    return rows, summarize(rows, target_ms, "")


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="half of the work or less")
    parser.add_argument("--part", choices=("simulated", "real", "both"), default="both")
    parser.add_argument("--threads", type=int, help="of the real part; default: every core")
    flags = parser.parse_args()
    rows: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    if flags.part != "real":
        more, facts = simulated(quick=flags.quick)
        rows, summary = rows + more, summary | facts
    if flags.part != "simulated":
        with TemporaryDirectory() as folder:
            more, facts = real(
                llava_60m(Path(folder)), quick=flags.quick, threads=flags.threads
            )
        rows, summary = rows + more, summary | facts
    report(Record(repeats=1, summary=summary, rows=rows), flags.json)


if __name__ == "__main__":
    main()
