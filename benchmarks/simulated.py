"""A runner without a model on a simulated clock, and requests that arrive on that clock.

Answers are arbitrary; how long they are is up to `max_new_tokens` with `ignore_eos`. So whole
loads pass through the real scheduler in seconds, and a run is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mmserve.core import (
    ForwardPlan,
    MediaSpan,
    PlanRow,
    Prompt,
    SampledRow,
    SampledTokens,
    SamplingParams,
)
from mmserve.sched import Scheduler, SequenceSpec, SequenceUpdate

__all__ = [
    "VOCAB_SIZE",
    "Arrival",
    "PlayedStep",
    "Segment",
    "SimulatedClock",
    "SimulatedRunner",
    "StepCost",
    "digest_of",
    "play",
    "prompt_of",
    "spec_of",
]

VOCAB_SIZE = 1 << 20
"""Large, so that random prompts do not begin alike by chance."""

_MEDIA_ID = VOCAB_SIZE - 1


class SimulatedClock:
    """Seconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """Seconds since the start."""
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Let time pass. Changes: the clock."""
        self.now_s += max(0.0, duration_s)


class SimulatedRunner:
    """Carries out plans by letting time pass.

    Args:
        step_ms: milliseconds that a plan takes.
        clock: moved on by every step.
    """

    def __init__(self, step_ms: Callable[[ForwardPlan], float], clock: SimulatedClock) -> None:
        self._step_ms = step_ms
        self._clock = clock

    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """Arbitrary tokens for rows that are to draw one. Changes: the clock."""
        forward_ms = self._step_ms(plan)
        self._clock.advance(forward_ms / 1e3)
        rows = tuple(SampledRow(row.sequence_id, _token_of(row)) for row in plan.rows)
        return SampledTokens(plan.step, rows, forward_ms=forward_ms)


def _token_of(row: PlanRow) -> int | None:
    """A token that depends on sequence and position, so that no two answers agree."""
    if row.sampling is None:
        return None
    word = row.sequence_id * 0x9E3779B1 + row.sampling.position * 0x85EBCA77
    return (word ^ (word >> 15)) % (VOCAB_SIZE - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Milliseconds of a step: a fixed part, and parts for what is computed in it.

    A row of one token counts as a decode row, any other one by its tokens.
    """

    base_ms: float
    prefill_token_ms: float
    decode_row_ms: float
    patch_ms: float = 0.0

    def __call__(self, plan: ForwardPlan) -> float:
        """Milliseconds of one plan. Pure."""
        num_rows = sum(len(row.token_ids) == 1 for row in plan.rows)
        num_patches = sum(len(item.inputs["pixels"]) for item in plan.encode)
        return (
            self.base_ms
            + self.prefill_token_ms * (plan.num_tokens - num_rows)
            + self.decode_row_ms * num_rows
            + self.patch_ms * num_patches
        )

    def slowed(self, factor: float) -> StepCost:
        """The cost on a machine that many times slower. Pure."""
        return StepCost(
            base_ms=self.base_ms * factor,
            prefill_token_ms=self.prefill_token_ms * factor,
            decode_row_ms=self.decode_row_ms * factor,
            patch_ms=self.patch_ms * factor,
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt; equal names are equal tokens. With patches it is a picture."""

    name: str
    num_tokens: int
    num_patches: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request: when it comes, from whom, what it asks, and how long the answer gets."""

    at_s: float
    client: str
    segments: tuple[Segment, ...]
    num_answer: int

    @property
    def num_prompt(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.num_tokens for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class PlayedStep:
    """A step that is over.

    Args:
        arrived: ids of the sequences added since the step before, in order.
        started_s: clock when it was planned.
    """

    plan: ForwardPlan
    updates: tuple[SequenceUpdate, ...]
    arrived: tuple[int, ...]
    started_s: float
    ended_s: float


def digest_of(segment: Segment) -> bytes:
    """Identity of a picture, 16 bytes. Pure."""
    return segment.name.encode().ljust(16, b".")[-16:]


@lru_cache(maxsize=1024)
def _tokens_of(name: str, num_tokens: int) -> NDArray[np.int64]:
    random = np.random.default_rng(list(name.encode()))
    return random.integers(0, _MEDIA_ID, num_tokens, dtype=np.int64)


def prompt_of(segments: Sequence[Segment]) -> Prompt:
    """Segments in a row as one prompt. Pure."""
    parts, spans, position = [], [], 0
    for segment in segments:
        if segment.num_patches:
            parts.append(np.full(segment.num_tokens, _MEDIA_ID, dtype=np.int64))
            spans.append(MediaSpan(digest_of(segment), position, segment.num_tokens, "image"))
        else:
            parts.append(_tokens_of(segment.name, segment.num_tokens))
        position += segment.num_tokens
    return Prompt(np.concatenate(parts), tuple(spans))


def spec_of(arrival: Arrival, sequence_id: int) -> SequenceSpec:
    """What the scheduler is handed for a request. Pure."""
    return SequenceSpec(
        sequence_id=sequence_id,
        prompt=prompt_of(arrival.segments),
        sampling=SamplingParams(max_new_tokens=arrival.num_answer, ignore_eos=True),
        seed=0,
        eos_token_ids=(),
        client=arrival.client,
    )


def play(
    scheduler: Scheduler,
    runner: SimulatedRunner,
    clock: SimulatedClock,
    arrivals: Sequence[Arrival],
) -> Iterator[PlayedStep]:
    """Every step until all requests are answered; those that come during a step join after it.

    Arrivals are by time; the place of a request in the list is its sequence id.

    Changes: scheduler, clock.
    """
    patches = {
        digest_of(segment): segment.num_patches
        for arrival in arrivals
        for segment in arrival.segments
        if segment.num_patches
    }
    num_added = num_ended = 0
    while num_ended < len(arrivals):
        arrived = []
        while num_added < len(arrivals) and arrivals[num_added].at_s <= clock.now_s:
            scheduler.add(spec_of(arrivals[num_added], num_added))
            arrived.append(num_added)
            num_added += 1
        for digest in scheduler.wanted():
            num_patches = patches[digest]
            pixels = {"pixels": np.zeros((num_patches, 1), dtype=np.float32)}
            scheduler.provide(digest, pixels, num_patches=num_patches)
        started_s = clock.now_s
        plan = scheduler.plan()
        if plan is None:
            if num_added == len(arrivals) or arrived:
                raise RuntimeError("nothing runs:\n" + scheduler.drawing("sched"))
            clock.advance(arrivals[num_added].at_s - clock.now_s)
            continue
        updates = scheduler.commit(runner.execute(plan))
        num_ended += sum(update.finish is not None for update in updates)
        yield PlayedStep(plan, updates, tuple(arrived), started_s, clock.now_s)
