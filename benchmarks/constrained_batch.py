"""A batch under a loose grammar against the same batch without: steps per second.

    free   any text   free   words   free   a JSON string   free

The grammars force nothing and end nothing, and end tokens are banned until the last token, so
that all batches take the same number of steps of the same size. Each batch is compared with the
free ones before and behind it, and the median over rounds is told; so is that of processor
time, which neighbours on the machine disturb less.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch

from benchmarks.character import NAMES
from mmserve.core import (
    Constraint,
    EngineConfig,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    default_threads,
)
from mmserve.engine import Engine, collect

__all__ = ["LOOSE", "measure_batch"]

_FLUSH_S = 30.0
_NUM_SLOTS = 8192

LOOSE: Mapping[str, Constraint] = {
    "any text": Constraint("regex", r"[\w\W]*"),
    "words": Constraint("regex", r"(\w+[\W_]+)*"),
    "1,500 characters": Constraint("regex", r"[\w\W]{1500}"),
    "a JSON string": Constraint(
        "json_schema", json.dumps({"type": "string", "minLength": 1500})
    ),
}


@dataclass(frozen=True, slots=True)
class _Run:
    seconds: float
    processor_s: float
    num_steps: int
    num_tokens: int
    num_forced: int

    @property
    def step_rate(self) -> float:
        """Steps per second."""
        return self.num_steps / self.seconds

    @property
    def step_ms(self) -> float:
        """Processor time of a step, all threads together."""
        return 1e3 * self.processor_s / self.num_steps


@dataclass(frozen=True, slots=True)
class _Trio:
    """A batch under a grammar between two without."""

    bound: _Run
    before: _Run
    behind: _Run

    @property
    def free_rate(self) -> float:
        """Steps per second without a grammar."""
        return mean((self.before.step_rate, self.behind.step_rate))

    @property
    def free_step_ms(self) -> float:
        """Processor time of a step without a grammar."""
        return mean((self.before.step_ms, self.behind.step_ms))


def measure_batch(
    model: str, *, num_rows: int, num_tokens: int, repeats: int, threads: int | None = None
) -> list[dict[str, Any]]:
    """A row for each loose grammar, against the batch without one."""
    threads = threads or default_threads()
    torch.set_num_threads(threads)
    trios: dict[str, list[_Trio]] = {name: [] for name in LOOSE}
    config = EngineConfig(model=model, num_slots=_NUM_SLOTS, threads=threads)
    with Engine.from_config(config) as engine:
        for constraint in LOOSE.values():
            _run(engine, constraint, num_rows, num_tokens)  # compiles, and warms up
        for number in range(repeats):
            names = list(LOOSE)
            first = number % len(names)
            free = _run(engine, None, num_rows, num_tokens)
            for name in (*names[first:], *names[:first]):
                bound = _run(engine, LOOSE[name], num_rows, num_tokens)
                before, free = free, _run(engine, None, num_rows, num_tokens)
                trios[name].append(_Trio(bound, before, free))
    return [_row(model, name, done) for name, done in trios.items()]


def _run(engine: Engine, constraint: Constraint | None, num_rows: int, num_tokens: int) -> _Run:
    if not engine.flush_cache(_FLUSH_S):
        raise RuntimeError("the engine is still busy")
    sampling = SamplingParams(
        max_new_tokens=num_tokens,
        min_new_tokens=num_tokens,
        temperature=0.0,
        constraint=constraint,
    )
    requests = [
        Request(
            request_id=str(number),
            parts=(
                Turn("user", (TextPart(f"Tell a story about {NAMES[number % len(NAMES)]}."),)),
                Turn("assistant", (), is_open=True),
            ),
            sampling=sampling,
        )
        for number in range(num_rows)
    ]
    before = engine.counters()["steps_total"]
    start, started = time.perf_counter(), time.process_time()
    tickets = [engine.submit(request) for request in requests]
    usages = [collect(ticket.outputs()).usage for ticket in tickets]
    seconds, processor_s = time.perf_counter() - start, time.process_time() - started
    return _Run(
        seconds=seconds,
        processor_s=processor_s,
        num_steps=int(engine.counters()["steps_total"] - before),
        num_tokens=sum(usage.completion_tokens for usage in usages),
        num_forced=sum(usage.forced_tokens for usage in usages),
    )


def _row(model: str, name: str, trios: Sequence[_Trio]) -> dict[str, Any]:
    bound = [trio.bound for trio in trios]
    return {
        "table": "batch",
        "model": model,
        "grammar": name,
        "step_rate_ratio": median(trio.bound.step_rate / trio.free_rate for trio in trios),
        "steps_per_s": median(run.step_rate for run in bound),
        "steps_per_s_free": median(trio.free_rate for trio in trios),
        "processor_ratio": median(trio.free_step_ms / trio.bound.step_ms for trio in trios),
        "processor_ms_a_step": median(run.step_ms for run in bound),
        "processor_ms_a_step_free": median(trio.free_step_ms for trio in trios),
        "steps": bound[0].num_steps,
        "tokens": bound[0].num_tokens,
        "tokens_free": trios[0].before.num_tokens,
        "forced_tokens": bound[0].num_forced,
    }
