"""Measures steps for the pace, and asks it what the next one may take."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mmserve.core import SampledTokens, SchedConfig
from mmserve.sched.flight import Flight
from mmserve.sched.pace.pace import StepBudget, StepPace
from mmserve.sched.sequence import Sequence
from mmserve.sched.step import PlannedRow

__all__ = ["Tempo"]


class Tempo:
    """The pace of one scheduler, with its clock."""

    def __init__(self, config: SchedConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock
        self._pace = StepPace(config.target_itl_ms)
        self._landed_s = clock()

    def budget(self, running: Iterable[Sequence]) -> StepBudget:
        """What the next step may take beside the next tokens of those that run. Pure."""
        config = self._config
        num_streams = sum(seq.missing == 1 and seq.num_output > 0 for seq in running)
        return self._pace.budget(
            num_streams,
            most_tokens=max(0, config.max_step_tokens - num_streams),
            most_patches=config.max_step_patches,
        )

    def note(self, flight: Flight, sampled: SampledTokens) -> None:
        """A step is back; with streams, all the time since the last one counts.

        Changes: what the pace knows.
        """
        now_s, last_s = self._clock(), self._landed_s
        self._landed_s = now_s
        if not flight.rows:
            self._pace.note_encode(flight.num_patches, sampled.encode_ms)
            return
        num_streams = sum(_is_stream(planned) for planned in flight.rows)
        forward_ms = sampled.forward_ms
        if num_streams:
            forward_ms = max(forward_ms, (now_s - last_s) * 1e3 - sampled.encode_ms)
        num_prompt = flight.plan.num_tokens - num_streams
        self._pace.note(
            num_streams, num_prompt, flight.num_patches, forward_ms, sampled.encode_ms
        )


def _is_stream(planned: PlannedRow) -> bool:
    """Whether the row is the next token of an answer under way. Pure."""
    return len(planned.row.token_ids) == 1 and planned.row.start >= planned.sequence.num_prompt
