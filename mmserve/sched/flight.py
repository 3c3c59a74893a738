"""A step that was planned and has not come back, and what is kept of it when it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mmserve.core import ForwardPlan, SampledTokens
from mmserve.sched.show.timeline import RowFacts, StepRecord
from mmserve.sched.step import PlannedRow
from mmserve.sched.updates import SchedCounts, SequenceUpdate

__all__ = ["Flight", "record_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Flight:
    """A planned step, and what planning it took; the fields of a `StepRecord` mean the same."""

    plan: ForwardPlan
    rows: tuple[PlannedRow, ...]
    start_s: float
    plan_ms: float
    num_patches: int
    retracted: tuple[int, ...]


def record_of(
    flight: Flight,
    sampled: SampledTokens,
    updates: Iterable[SequenceUpdate],
    counts: SchedCounts,
) -> StepRecord:
    """A step that is back, with the news it brought. Pure. Cost: about 0.3 us a row."""
    ends: dict[int, str] = {
        news.sequence_id: news.finish.reason for news in updates if news.finish is not None
    }
    return StepRecord(
        step=flight.plan.step,
        start_s=flight.start_s,
        plan_ms=flight.plan_ms,
        encode_ms=sampled.encode_ms,
        forward_ms=sampled.forward_ms,
        facts=tuple(_facts(planned, ends) for planned in flight.rows),
        num_patches=flight.num_patches,
        waiting=counts.waiting,
        running=counts.running,
        slots_free=counts.slots_free,
        slots_cached=counts.slots_cached,
        slots_held=counts.slots_held,
        retracted=flight.retracted,
    )


def _facts(planned: PlannedRow, ends: Mapping[int, str]) -> RowFacts:
    sequence, num_tokens = planned.sequence, len(planned.row.token_ids)
    num_decode = int(num_tokens == 1 and planned.row.start >= sequence.num_prompt)
    return (
        sequence.sequence_id,
        sequence.spec.client,
        sequence.arrived_s,
        planned.num_cached,
        num_tokens - num_decode,
        num_decode,
        ends.get(sequence.sequence_id),
    )
