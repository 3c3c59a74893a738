"""Recorded requests through the real scheduler, on a simulated clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes import VOCAB_SIZE, Ask
from benchmarks.simulated import SimulatedClock
from mmserve.core import ForwardPlan, SampledRow, SampledTokens, SamplingParams, SchedConfig
from mmserve.sched import Scheduler, SequenceSpec, SequenceUpdate

__all__ = ["Replay", "ReplayRunner", "replay", "step_ms"]

BASE_MS = 50.0
PREFILL_TOKEN_MS = 1.5
DECODE_ROW_MS = 3.0
PATCH_MS = 0.5
"""About what a step costs with 135M parameters on two cores of a CPU."""

PATCHES_PER_TOKEN = 4
THINK_S = 0.0
"""From an answer to the next request of the same chain: a program goes on at once."""


def step_ms(plan: ForwardPlan) -> float:
    """Milliseconds of a step; a row of one token counts as decoding. Pure."""
    num_decodes = sum(len(row.token_ids) == 1 for row in plan.rows)
    num_patches = sum(len(item.inputs["pixels"]) for item in plan.encode)
    return (
        BASE_MS
        + PREFILL_TOKEN_MS * (plan.num_tokens - num_decodes)
        + DECODE_ROW_MS * num_decodes
        + PATCH_MS * num_patches
    )


class ReplayRunner:
    """Obeys the `Runner` port: draws the recorded answers, and lets time pass.

    Args:
        answers: int64 [a] by sequence id.
        clock: moved on by every step.
    """

    def __init__(self, answers: Sequence[NDArray[np.int64]], clock: SimulatedClock) -> None:
        self._answers = answers
        self._clock = clock

    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """The next recorded token of every row that draws one. Changes: the clock."""
        duration_ms = step_ms(plan)
        self._clock.advance(duration_ms / 1e3)
        rows = []
        for row in plan.rows:
            token_id = None
            if row.sampling is not None:
                token_id = int(self._answers[row.sequence_id][row.sampling.position])
            rows.append(SampledRow(row.sequence_id, token_id))
        return SampledTokens(plan.step, tuple(rows), forward_ms=duration_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of a stream.

    Args:
        hit_tokens: prompt tokens that requests took from the cache, by their own usage.
        prompt_computed: prompt tokens computed, repetitions after a retraction included.
        seconds: simulated time from the first arrival to the last answer.
        arrived_s: [r] when each request came.
        started_s: [r] when each had its first step.
    """

    hit_tokens: int
    prompt_computed: int
    retractions: int
    seconds: float
    arrived_s: tuple[float, ...]
    started_s: tuple[float, ...]

    @property
    def waits_s(self) -> NDArray[np.float64]:
        """Seconds [r] from arrival to the first step."""
        return np.array(self.started_s) - np.array(self.arrived_s)


class _Stream:
    """The requests of one run on their way: to come, waiting for an answer, added, ended."""

    def __init__(self, asks: Sequence[Ask], due_s: Sequence[float | None]) -> None:
        self.asks = asks
        self.arrived_s = [0.0] * len(asks)
        self.started_s: list[float | None] = [None] * len(asks)
        self.num_ended = self.num_hits = 0
        self._due = [(due, place) for place, due in enumerate(due_s) if due is not None]
        heapq.heapify(self._due)
        self._next: dict[int, list[int]] = {}
        for place, (ask, due) in enumerate(zip(asks, due_s, strict=True)):
            if due is None and ask.after is not None:
                self._next.setdefault(ask.after, []).append(place)

    @property
    def next_due_s(self) -> float | None:
        """When the next request comes; None if none is known to."""
        return self._due[0][0] if self._due else None

    def arrivals(self, now_s: float) -> list[int]:
        """Places of those that have come by now. Changes: they are added."""
        found = []
        while self._due and self._due[0][0] <= now_s:
            due, place = heapq.heappop(self._due)
            self.arrived_s[place] = due
            found.append(place)
        return found

    def take(self, updates: Sequence[SequenceUpdate], now_s: float) -> None:
        """Note ends. Changes: clients who waited for an answer go on after a while."""
        for update in updates:
            if update.finish is None:
                continue
            if update.finish.reason != "length":
                raise RuntimeError(f"a request ended early: {update.finish}")
            self.num_ended += 1
            self.num_hits += update.usage.cached_tokens
            for place in self._next.get(update.sequence_id, ()):
                heapq.heappush(self._due, (now_s + THINK_S, place))

    def note_starts(self, plan: ForwardPlan, now_s: float) -> None:
        """Note first steps. Changes: `started_s`."""
        for row in plan.rows:
            if self.started_s[row.sequence_id] is None:
                self.started_s[row.sequence_id] = now_s


def replay(
    asks: Sequence[Ask],
    due_s: Sequence[float | None],
    config: SchedConfig,
    *,
    num_slots: int,
    context_length: int,
    watch: Callable[[Scheduler], None] | None = None,
) -> Replay:
    """Serve a stream to its end.

    Args:
        asks: the requests; the place of one in the stream is its sequence id.
        due_s: [r] when each request comes, in seconds; None: when `after` was answered.
        config: of the scheduler.
        num_slots: tokens of KV.
        context_length: most tokens of a prompt and its answer.
        watch: called after every step.
    """
    clock = SimulatedClock()
    scheduler = Scheduler(
        config,
        num_slots=num_slots,
        context_length=context_length,
        vocab_size=VOCAB_SIZE,
        clock=clock,
    )
    runner = ReplayRunner([ask.answer for ask in asks], clock)
    stream = _Stream(asks, due_s)
    patches = {
        span.digest: span.num_tokens * PATCHES_PER_TOKEN
        for ask in asks
        for span in ask.prompt.spans
    }
    while stream.num_ended < len(asks):
        for place in stream.arrivals(clock.now_s):
            scheduler.add(_spec(place, asks[place]))
        plan = scheduler.plan()
        if _provide(scheduler, patches) and plan is None:
            continue
        if plan is None:
            if stream.next_due_s is None:
                raise RuntimeError("nothing runs:\n" + scheduler.drawing("sched"))
            clock.advance(stream.next_due_s - clock.now_s + 1e-9)
            continue
        stream.note_starts(plan, clock.now_s)
        updates = scheduler.commit(runner.execute(plan))
        stream.take(updates, clock.now_s)
        if watch is not None:
            watch(scheduler)
    counts = scheduler.counts()
    return Replay(
        hit_tokens=stream.num_hits,
        prompt_computed=counts.prompt_tokens_computed,
        retractions=counts.retractions,
        seconds=clock.now_s,
        arrived_s=tuple(stream.arrived_s),
        started_s=tuple(at for at in stream.started_s if at is not None),
    )


def _spec(place: int, ask: Ask) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=place,
        prompt=ask.prompt,
        sampling=SamplingParams(
            temperature=0.0, max_new_tokens=len(ask.answer), ignore_eos=True
        ),
        seed=0,
        eos_token_ids=(),
        client=ask.client,
    )


def _provide(scheduler: Scheduler, patches: dict[bytes, int]) -> bool:
    """Give pixels to all who want them; whether anybody did. Decoding takes no time."""
    wanted = scheduler.wanted()
    for digest in wanted:
        pixels = np.empty((patches[digest], 0), dtype=np.float32)
        scheduler.provide(digest, {"pixels": pixels}, num_patches=patches[digest])
    return bool(wanted)
