"""The books that planning a step reads and writes, together."""

from __future__ import annotations

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

    def growth(self, sequence: Sequence) -> int:
        """Slots a sequence is expected to take soon, beyond those it has. Pure."""
        most = sequence.max_new - sequence.num_output
        num_tokens = sequence.known + self.forecast.remaining(sequence.num_output, most)
        num_slots_for = self.memory.num_slots_for
        return num_slots_for(num_tokens) - num_slots_for(sequence.slots.size)
