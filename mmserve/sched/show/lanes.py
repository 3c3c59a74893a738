"""Records of steps turned round: not who was in a step, but in which steps a sequence was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mmserve.sched.show.timeline import StepRecord, StepRow

__all__ = ["Lane", "Waiter", "lanes_of"]


@dataclass(frozen=True, slots=True)
class Waiter:
    """A sequence that waits now; `arrived_s` is on the clock of the records."""

    sequence_id: int
    client: str
    arrived_s: float


@dataclass(slots=True)
class Lane:
    """All that the records know of one sequence.

    Args:
        rows: (place of the step among the records, row), in order.
        retracted: places of steps before which it was retracted.
        is_waiting: whether it waits now.
    """

    sequence_id: int
    client: str
    arrived_s: float
    rows: list[tuple[int, StepRow]] = field(default_factory=list)
    retracted: list[int] = field(default_factory=list)
    is_waiting: bool = False

    @property
    def num_cached(self) -> int:
        """Tokens not computed by it."""
        return sum(row.num_cached for _, row in self.rows)

    @property
    def num_prefill(self) -> int:
        """Tokens computed to catch up."""
        return sum(row.num_prefill for _, row in self.rows)

    @property
    def num_decode(self) -> int:
        """Tokens of the answer computed one at a time."""
        return sum(row.num_decode for _, row in self.rows)

    def waits(self, records: Sequence[StepRecord]) -> list[tuple[int, int]]:
        """Half-open ranges of places during which it waited. Pure.

        A step under way when the sequence came does not count.
        """
        first = self.rows[0][0] if self.rows else len(records)
        begin = first
        while begin > 0 and records[begin - 1].start_s >= self.arrived_s:
            begin -= 1
        ranges = [(begin, first)] if begin < first else []
        for place in self.retracted:
            later = [at for at, _ in self.rows if at >= place]
            back = later[0] if later else (len(records) if self.is_waiting else place)
            if back > place:
                ranges.append((place, back))
        return ranges


def lanes_of(
    records: Sequence[StepRecord], waiters: Iterable[Waiter], max_lanes: int
) -> tuple[list[Lane], int]:
    """Lanes of the sequences that ran last, and how many of those that ran are left out.

    In the order of arrival. At most a third of the lanes is for those that wait and never ran.
    Pure.
    """
    lanes: dict[int, Lane] = {}
    for place, record in enumerate(records):
        for sequence_id in record.retracted:
            if sequence_id in lanes:
                lanes[sequence_id].retracted.append(place)
        for row in record.rows:
            lane = lanes.get(row.sequence_id)
            if lane is None:
                lane = lanes[row.sequence_id] = Lane(row.sequence_id, row.client, row.arrived_s)
            lane.rows.append((place, row))
    newcomers: dict[int, Lane] = {}
    for waiter in waiters:
        if waiter.sequence_id in lanes:
            lanes[waiter.sequence_id].is_waiting = True
        elif len(newcomers) < max_lanes // 3:
            newcomers[waiter.sequence_id] = Lane(
                waiter.sequence_id, waiter.client, waiter.arrived_s, is_waiting=True
            )
    seen = sorted(lanes.values(), key=lambda lane: (lane.rows[-1][0], lane.arrived_s))
    kept = seen[-(max_lanes - len(newcomers)) :]
    order = sorted(
        (*kept, *newcomers.values()), key=lambda lane: (lane.arrived_s, lane.sequence_id)
    )
    return order, len(seen) - len(kept)
