"""The books that planning a step reads and writes, together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.core import SchedConfig
from mmserve.sched.media import MediaDesk
from mmserve.sched.memory import KvMemory
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.pace.forecast import GrowthForecast
from mmserve.sched.sequence import Sequence

__all__ = ["Ledgers"]


@dataclass(frozen=True, slots=True, eq=False)
class Ledgers:
    """The books that planning a step reads and writes."""

    config: SchedConfig
    memory: KvMemory
    desk: MediaDesk
    fairness: Fairness
    forecast: GrowthForecast

    def by_right_of_way(self, running: Iterable[Sequence]) -> list[Sequence]:
        """Running sequences, who goes first first; the last one is retracted first. Pure.

        By class of the client, then by the client that came first; its own by priority, then
        arrival. Without fairness all are one client's.
        """
        sequences = sorted(running, key=lambda sequence: sequence.arrival)
        came: dict[str, tuple[int, int]] = {}
        for sequence in sequences:
            client = sequence.spec.client
            queue = self.fairness.queue_of(client)
            came.setdefault(queue, (-self.fairness.class_of(client), sequence.arrival))
        return sorted(
            sequences,
            key=lambda sequence: (
                came[self.fairness.queue_of(sequence.spec.client)],
                -sequence.spec.priority,
            ),
        )

    def growth(self, sequence: Sequence) -> int:
        """Slots a sequence is expected to take soon, beyond those it has. Pure."""
        most = sequence.max_new - sequence.num_output
        num_tokens = sequence.known + self.forecast.remaining(sequence.num_output, most)
        num_slots_for = self.memory.num_slots_for
        return num_slots_for(num_tokens) - num_slots_for(sequence.slots.size)
