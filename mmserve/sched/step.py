"""Building one step: rows, in an order in which every row finds what it reads.

budget   tokens of the step | tokens of a sequence | patches to encode | slots
row      [ 0 .... start )   KV is there, or an earlier row of this step writes it
         [ start .. stop )  computed now
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from mmserve.core import PlanRow, SchedConfig
from mmserve.radix import Match, Node
from mmserve.sched.admission import growth
from mmserve.sched.choice import row_sampling
from mmserve.sched.media import Encoding, MediaDesk, feature_uses
from mmserve.sched.memory import KvMemory, Pending
from mmserve.sched.sequence import Sequence

__all__ = ["Outcome", "PlannedRow", "StepBuilder"]


class Outcome(enum.Enum):
    """What came of the attempt to give a sequence a row."""

    PLACED = "has a row"
    BUDGET = "the step is full"
    SLOTS = "no slots"
    MEDIA = "waits for pixels or for room for features"
    SHARED = "a neighbour computes its next tokens"


@dataclass(frozen=True, slots=True, eq=False)
class PlannedRow:
    """A row, whose it is, and how to undo it."""

    sequence: Sequence
    row: PlanRow
    pending: Pending | None
    is_last: bool
    """Whether the row reaches the last known token."""


class StepBuilder:
    """One step in the making."""

    def __init__(self, config: SchedConfig, memory: KvMemory, desk: MediaDesk) -> None:
        self.rows: list[PlannedRow] = []
        self.num_tokens_left = config.max_step_tokens
        self.encoding = Encoding(config.max_step_patches, {})
        self._chunk_tokens = config.chunk_tokens
        self._memory = memory
        self._desk = desk
        self._frontier: dict[Node, list[Sequence]] = {}
        self._has_prompt_rows = False

    def place(self, sequence: Sequence, *, num_reserved: int | None = None) -> Outcome:
        """Try to give a sequence a row.

        Args:
            sequence: running, or a candidate.
            num_reserved: for a candidate beside others: slots to leave for their growth. The
                candidate must then have room for all its known tokens and some answer.

        Changes: if PLACED, the step, slots, tree and pins; if MEDIA, what pixels are wanted.
        """
        match = self._memory.look(sequence)
        start = sequence.computed if match is None else match.num_tokens
        if self._is_under_way(sequence, match, start):
            return Outcome.SHARED
        num_slots = self._memory.num_available_after(match)
        stop = self._stop(sequence, start, num_slots, num_reserved)
        if isinstance(stop, Outcome):
            return stop
        for place, span in sequence.spans_in(start, stop):
            if not self._desk.secure(sequence, place, span, self.encoding):
                stop = max(start, span.start)
                break
        if stop == start:
            return Outcome.MEDIA
        self._add_row(sequence, match, start, stop)
        return Outcome.PLACED

    def watch(self, sequence: Sequence) -> None:
        """Let others wait for what this running sequence will compute. Changes: the step."""
        node, end = sequence.node, len(sequence.slots)
        if node is not None and sequence.depth == end < sequence.known:
            self._frontier.setdefault(node, []).append(sequence)

    def _is_under_way(self, sequence: Sequence, match: Match | None, start: int) -> bool:
        """Whether a running sequence computes the very next token in a later step."""
        if match is None or not match.is_whole or start >= sequence.match_limit:
            return False
        key = sequence.keys[start]
        return any(
            other is not sequence and other.keys[start] == key
            for other in self._frontier.get(match.node, ())
        )

    def _stop(
        self, sequence: Sequence, start: int, num_slots: int, num_reserved: int | None
    ) -> int | Outcome:
        """Where budgets end the row, or which of them is spent."""
        num_missing = sequence.known - start
        if self.num_tokens_left <= 0:
            return Outcome.BUDGET
        if num_reserved is not None:
            num_needed = num_reserved + growth(sequence) - start
            if num_slots < num_needed:
                return Outcome.SLOTS
        if num_slots <= 0:
            return Outcome.SLOTS
        num_tokens = min(num_missing, self.num_tokens_left, num_slots)
        if num_missing > 1:
            num_tokens = min(num_tokens, self._chunk_tokens)
        return self._around_atomic(sequence, start, start + num_tokens, num_slots)

    def _around_atomic(
        self, sequence: Sequence, start: int, stop: int, num_slots: int
    ) -> int | Outcome:
        """Move `stop` out of an atomic span: before it, or, if the row begins with it, behind.

        A span longer than a whole step gets a step whose only prompt row it is.
        """
        for first, end in sequence.atomic:
            if not first < stop < end:
                continue
            if first > start:
                return first
            if end - start > num_slots:
                return Outcome.SLOTS
            if end - start > self.num_tokens_left and self._has_prompt_rows:
                return Outcome.BUDGET
            return end
        return stop

    def _add_row(self, sequence: Sequence, match: Match | None, start: int, stop: int) -> None:
        known = sequence.known
        sampling = row_sampling(sequence) if stop == known else None
        before = sequence.computed
        self._memory.advance(sequence, match)
        sequence.note_cached(before, start)
        pending = self._memory.take(sequence, stop - start)
        is_scored = sequence.next_score < sequence.num_prompt and stop >= sequence.next_score
        row = PlanRow(
            sequence_id=sequence.sequence_id,
            start=start,
            token_ids=sequence.tokens.view(start, stop),
            slots=sequence.slots.view(0, stop),
            features=feature_uses(sequence.spans_in(start, stop), start, stop),
            sampling=sampling,
            logprobs_from=sequence.next_score if is_scored else None,
            next_id=sequence.tokens[stop] if is_scored and stop < known else None,
            num_prompt_top=sequence.spec.sampling.top_logprobs if is_scored else 0,
        )
        self.rows.append(PlannedRow(sequence, row, pending, is_last=stop == known))
        self.num_tokens_left -= stop - start
        self._has_prompt_rows |= stop - start > 1
        if stop < known:
            self.watch(sequence)
