"""Running a workload once on a backend, with what it took and gave."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.program_workloads import Workload
from mmserve.core import Client
from mmserve.lang import ClientBackend

__all__ = ["REFERENCE", "Lane", "Run"]

REFERENCE = "transformers"
_FLUSH_S = 30.0
_COUNTED = (
    "prompt_tokens_computed_total",
    "prompt_tokens_cached_total",
    "generated_tokens_total",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a workload. `answers` are texts by program; the counts are of tokens."""

    seconds: float
    prompt_computed: int
    prompt_cached: int
    generated: int
    answers: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Lane:
    """A configuration that is ready to run.

    Args:
        name: as in records.
        backend: what programs run on.
        client: the same, for its counters and its cache.
        values: how `run_batch` is called.
        is_compiled: whether programs are compiled, which is not timed.
        is_slow: whether every second round leaves it out.
    """

    name: str
    backend: ClientBackend
    client: Client
    values: Mapping[str, Any]
    is_compiled: bool = False
    is_slow: bool = False

    def run(self, work: Workload) -> Run:
        """All rows once, from an empty cache. Raises what a program fails with."""
        if not self.client.flush_cache(_FLUSH_S):
            message = f"{self.name} is still busy"
            raise RuntimeError(message)
        program = work.program.compile() if self.is_compiled else work.program
        values = {**work.values, **self.values, "on_error": "raise"}
        before = self.client.counters()
        start = time.perf_counter()
        states = program.run_batch(list(work.rows), backend=self.backend, **values)
        seconds = time.perf_counter() - start
        after = self.client.counters()
        computed, cached, generated = (int(after[name] - before[name]) for name in _COUNTED)
        answers = tuple(tuple(map(str, state.ret_value)) for state in states)
        return Run(seconds, computed, cached, generated, answers)
