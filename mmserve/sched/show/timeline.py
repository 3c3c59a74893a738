"""What the last steps did, kept for those who want to look: a ring of frozen records."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["RowFacts", "StepRecord", "StepRow", "Timeline"]

RowFacts = tuple[int, str, float, int, int, int, str | None]
"""The fields of a `StepRow` in their order: made in a seventh of its time, in every step."""


class StepRow(NamedTuple):
    """One sequence in one step.

    Args:
        arrived_s: clock at its arrival.
        num_cached: tokens found in the tree, or written by a neighbour, just before this row.
        num_prefill: tokens computed to catch up with what is known.
        num_decode: 1 if all that was computed is the token drawn last, else 0.
        finish: why the sequence ended with this step, or None.
    """

    sequence_id: int
    client: str
    arrived_s: float
    num_cached: int
    num_prefill: int
    num_decode: int
    finish: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step that came back, whether it held or failed.

    Args:
        start_s: clock when planning began.
        plan_ms: planning; then came `encode_ms` and `forward_ms` on the device.
        num_patches: encoded in this step.
        waiting, running: sequences after the step.
        slots_free, slots_cached, slots_held: as in `SchedCounts`, after the step.
        facts: of each row.
        retracted: ids of sequences that lost their place while this step was planned.
    """

    step: int
    start_s: float
    plan_ms: float
    encode_ms: float
    forward_ms: float
    facts: tuple[RowFacts, ...]
    num_patches: int = 0
    waiting: int = 0
    running: int = 0
    slots_free: int = 0
    slots_cached: int = 0
    slots_held: int = 0
    retracted: tuple[int, ...] = ()

    @property
    def rows(self) -> list[StepRow]:
        """The facts by name. Pure. Cost: O(rows)."""
        return list(map(StepRow._make, self.facts))

    @property
    def total_ms(self) -> float:
        """From the begin of planning to the result, in milliseconds."""
        return self.plan_ms + self.encode_ms + self.forward_ms

    @property
    def end_s(self) -> float:
        """Clock when the result was there."""
        return self.start_s + self.total_ms / 1e3

    @property
    def num_tokens(self) -> int:
        """Tokens computed."""
        return sum(facts[4] + facts[5] for facts in self.facts)


class Timeline:
    """The last `max_steps` records."""

    def __init__(self, max_steps: int = 256) -> None:
        self._records: deque[StepRecord] = deque(maxlen=max_steps)

    def note(self, record: StepRecord) -> None:
        """Keep a record. Changes: the oldest is forgotten if there are too many. Cost: O(1)."""
        self._records.append(record)

    def records(self) -> tuple[StepRecord, ...]:
        """What is kept, oldest first. Pure. Cost: O(max_steps)."""
        return tuple(self._records)
