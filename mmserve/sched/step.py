"""Building one step: rows, in an order in which every row finds what it reads.

budget   tokens of the step | prompt tokens of it | tokens of a sequence | patches | slots
row      [ 0 .... start )   KV is there, or an earlier row of this step writes it
         [ start .. stop )  computed now
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from mmserve.core import PlanRow
from mmserve.radix import Match, Node
from mmserve.sched.choice import row_sampling
from mmserve.sched.ledgers import Ledgers
from mmserve.sched.media import Encoding, feature_uses
from mmserve.sched.memory import Pending
from mmserve.sched.misses import note_hits, note_misses, survey
from mmserve.sched.pace.pace import LONE_TOKENS, StepBudget
from mmserve.sched.sequence import Sequence

__all__ = ["Beside", "Outcome", "PlannedRow", "StepBuilder"]

_MAX_JUMP = 64
"""Most tokens of an answer that a step computes as if they were its next one."""


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
    num_cached: int
    """Tokens before the row that were found, not computed."""


@dataclass(frozen=True, slots=True)
class Beside:
    """What a candidate leaves to others.

    Args:
        num_reserved: slots for the growth of those that run.
        is_passing: whether it passes somebody who found no slots; then it leaves all KV that
            anybody waiting wants.
    """

    num_reserved: int
    is_passing: bool


class StepBuilder:
    """One step in the making; `budget` is for what comes beside its decode rows."""

    def __init__(self, ledgers: Ledgers, budget: StepBudget) -> None:
        self.rows: list[PlannedRow] = []
        self.num_tokens_left = ledgers.config.max_step_tokens
        self.encoding = Encoding(budget.patches, budget.lone_patches, {}, {})
        self._budget = budget
        self._num_prompt_tokens = 0
        self._ledgers = ledgers
        self._memory = ledgers.memory
        self._desk = ledgers.desk
        self._frontier: dict[Node, list[Sequence]] = {}
        self._has_prompt_rows = False
        self.held_back: list[Sequence] = []
        """Candidates refused for want of room for features, or of time to encode."""
        self.takes_pictures = True
        """Whether candidates that lack picture tokens may start."""
        self._lacks_media = False
        """Whether a row was cut short, or not made, for want of a picture."""

    @property
    def num_prompt_left(self) -> int:
        """Prompt tokens that still fit beside the pictures. Pure."""
        num_patches = sum(self.encoding.num_patches.values())
        return self._budget.tokens_beside(num_patches) - self._num_prompt_tokens

    @property
    def is_full(self) -> bool:
        """Whether no prompt row has room any more. Pure."""
        return self.num_tokens_left <= 0 or self.num_prompt_left <= 0

    def place(self, sequence: Sequence, beside: Beside | None = None) -> Outcome:
        """Try to give a sequence a row.

        Args:
            sequence: running, or a candidate.
            beside: for a candidate beside others: what it must leave to them. It must then have
                room for all its known tokens and some answer.

        Changes: if PLACED, the step, slots, tree, pins, service; if MEDIA, what pixels are
        wanted.
        """
        if sequence.is_streaming:
            return self._place_next(sequence)
        match = self._memory.look(sequence)
        start = sequence.computed if match is None else match.num_tokens
        stop = self._end(sequence, match, start, beside)
        if isinstance(stop, Outcome):
            return stop
        stop = self._secure(sequence, start, stop)
        if stop == start:
            return Outcome.MEDIA
        self._add_row(sequence, match, start, stop)
        return Outcome.PLACED

    def _end(
        self, sequence: Sequence, match: Match | None, start: int, beside: Beside | None
    ) -> int | Outcome:
        """Where neighbours and budgets let the row end, or what keeps it from starting."""
        if self._is_under_way(sequence, match, start):
            return Outcome.SHARED
        if not self.takes_pictures and sequence.spans_in(start, sequence.num_prompt):
            return Outcome.MEDIA
        if beside is not None and beside.is_passing:
            num_slots = self._memory.num_unwanted(sequence)
        else:
            num_slots = self._memory.num_room(sequence, match)
        return self._stop(sequence, start, num_slots, beside)

    def _place_next(self, sequence: Sequence) -> Outcome:
        """The short way of an answer's next token, which is most rows: 8 us."""
        if self.num_tokens_left <= 0:
            return Outcome.BUDGET
        if not self._memory.has_next(sequence):
            return Outcome.SLOTS
        start, known = sequence.computed, sequence.known
        self._memory.take_next(sequence)
        self._ledgers.fairness.charge(sequence.spec.client, self._ledgers.config.decode_cost)
        row = PlanRow(
            sequence_id=sequence.sequence_id,
            start=start,
            token_ids=sequence.tokens.view(start, known),
            slots=sequence.slots.view(0, known),
            sampling=row_sampling(sequence),
            positions=sequence.positions(start, known),
        )
        self.rows.append(PlannedRow(sequence, row, None, is_last=True, num_cached=0))
        self.num_tokens_left -= 1
        return Outcome.PLACED

    def _secure(self, sequence: Sequence, start: int, stop: int) -> int:
        """Make sure of the media of a row; where the row ends for want of some."""
        ledgers, encoding = self._ledgers, self.encoding
        for place, span in sequence.spans_in(start, stop):
            if span.start >= stop:
                break
            num_items = len(encoding.items)
            self._leave_room(self._num_prompt_tokens + max(0, span.start - start))
            if not self._desk.secure(sequence, place, span, encoding):
                self._lacks_media = True
                return max(start, span.start)
            if len(encoding.items) > num_items:
                cost = ledgers.config.patch_cost * encoding.num_patches[span.digest]
                payers = self._desk.bill(span.digest, "encode", sequence.spec.client)
                ledgers.fairness.share(payers, cost)
                if not sequence.atomic:
                    stop = min(stop, start + max(1, self.num_prompt_left))
        return stop

    def _leave_room(self, num_tokens: int) -> None:
        """Patches that may come beside so many prompt tokens. Changes: the encoding."""
        encoding, budget = self.encoding, self._budget
        num_encoded = sum(encoding.num_patches.values())
        encoding.num_patches_left = budget.patches_beside(num_tokens) - num_encoded
        encoding.lone_patches = budget.lone_patches if num_tokens <= LONE_TOKENS else 0

    def encode_early(self) -> None:
        """Encode a picture that is only hinted at, if no row has one encoded, or lacks one.

        Comes after all rows and takes what they leave; a picture beyond the budget needs a step
        without rows. Changes: the encoding, the ledger, service.
        """
        if not len(self._desk.hints) or self._lacks_media or self.encoding.items:
            return
        self._leave_room(self._num_prompt_tokens)
        if self.rows:
            self.encoding.lone_patches = 0
        digest = self._desk.encode_early(self.encoding)
        if digest is not None:
            cost = self._ledgers.config.patch_cost * self.encoding.num_patches[digest]
            self._ledgers.fairness.share(self._desk.bill(digest, "encode"), cost)

    def watch(self, sequence: Sequence) -> None:
        """Let others wait for what this running sequence will compute. Changes: the step."""
        node, end = sequence.node, sequence.slots.size
        if node is not None and sequence.depth == end < sequence.known:
            self._frontier.setdefault(node, []).append(sequence)

    def _is_under_way(self, sequence: Sequence, match: Match | None, start: int) -> bool:
        """Whether a running sequence computes the very next token in a later step."""
        if match is None or not match.is_whole or start >= sequence.match_limit:
            return False
        end = start + self._ledgers.config.page_tokens
        page = sequence.keys.view(start, end)
        return any(
            other is not sequence and np.array_equal(other.keys.view(start, end), page)
            for other in self._frontier.get(match.node, ())
        )

    def _stop(
        self, sequence: Sequence, start: int, num_slots: int, beside: Beside | None
    ) -> int | Outcome:
        """Where budgets end the row, or which of them is spent."""
        num_missing = sequence.known - start
        is_decode = _is_answer(sequence, start, num_missing)
        num_left = self.num_tokens_left
        if not is_decode:
            num_left = min(num_left, self.num_prompt_left)
        if num_left <= 0:
            return Outcome.BUDGET
        if beside is not None:
            num_needed = beside.num_reserved + self._ledgers.growth(sequence) - start
            if num_slots < num_needed:
                return Outcome.SLOTS
        if num_slots <= 0:
            return Outcome.SLOTS
        num_tokens = min(num_missing, num_left, num_slots, self._ledgers.config.chunk_tokens)
        if not self._ledgers.config.jump_forward:
            num_tokens = min(num_tokens, max(1, sequence.num_prompt - start))
        stop = self._to_page(start, start + num_tokens, sequence.known)
        return self._around_atomic(sequence, start, stop, num_slots)

    def _to_page(self, start: int, stop: int, known: int) -> int:
        """Let a row that does not end the prompt end a page, if it reaches one."""
        whole = stop - stop % self._ledgers.config.page_tokens
        return whole if stop < known and whole > start else stop

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
            lone_tokens = 0 if self._has_prompt_rows else self._budget.lone_tokens
            if end - start > max(min(self.num_tokens_left, self.num_prompt_left), lone_tokens):
                return Outcome.BUDGET
            return end
        return stop

    def _add_row(self, sequence: Sequence, match: Match | None, start: int, stop: int) -> None:
        known = sequence.known
        sampling = row_sampling(sequence) if stop == known else None
        if sequence.num_accounted == 0 and sequence.num_prompt:
            sequence.seen = survey(sequence, self._memory, start)
        num_cached = start - sequence.computed
        self._memory.advance(sequence, match)
        pending = self._memory.take(sequence, stop - start)
        self._account(sequence, start, stop, pending)
        spec = sequence.spec
        is_scored = sequence.next_score < sequence.score_stop and stop >= sequence.next_score
        rivals = tuple(rival for rival in spec.rivals if start < rival[0] <= stop)
        row = PlanRow(
            sequence_id=sequence.sequence_id,
            start=start,
            token_ids=sequence.tokens.view(start, stop),
            slots=sequence.slots.view(0, stop),
            features=feature_uses(sequence.spans_in(start, stop), start, stop),
            sampling=sampling,
            logprobs_from=sequence.next_score if is_scored else None,
            next_id=sequence.tokens[stop] if is_scored and stop < known else None,
            num_prompt_top=spec.sampling.top_logprobs if is_scored or rivals else 0,
            rivals=rivals,
            positions=sequence.positions(start, stop),
            two_way=tuple(span for span in sequence.atomic if start <= span[0] < stop),
        )
        self.rows.append(PlannedRow(sequence, row, pending, stop == known, num_cached))
        self.num_tokens_left -= stop - start
        if not _is_answer(sequence, start, stop - start):
            self._num_prompt_tokens += stop - start
        self._has_prompt_rows |= stop - start > 1
        if stop < known:
            self.watch(sequence)

    def _account(
        self, sequence: Sequence, start: int, stop: int, pending: Pending | None
    ) -> None:
        """Note hits and misses of a row, and charge for it; never twice for one token."""
        fairness, client = self._ledgers.fairness, sequence.spec.client
        first, end = sequence.num_accounted, min(stop, sequence.num_prompt)
        if stop == sequence.known and sequence.max_new:
            fairness.charge(client, self._ledgers.config.decode_cost)
        if end <= first:
            return
        if start > first:
            note_hits(sequence, first, min(start, end))
            first = min(start, end)
        if end > first:
            note_misses(sequence, first, end, sequence.seen)
            num_shared = 0
            for node in pending.nodes if pending is not None else ():
                num_tokens = min(node.depth, end) - max(node.depth - node.num_tokens, first)
                if num_tokens > 0 and node.guests and not node.is_again:
                    num_shared += num_tokens
                    fairness.share(node.guests, num_tokens)
            fairness.charge(client, end - first - num_shared)
        sequence.num_accounted = end


def _is_answer(sequence: Sequence, start: int, num_tokens: int) -> bool:
    """Whether a row is part of an answer under way: one token, or a few that were forced."""
    return start >= sequence.num_prompt and num_tokens <= _MAX_JUMP
