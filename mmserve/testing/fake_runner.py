"""A runner without a model that obeys the `Runner` port to the letter.

Every slot remembers which token it holds, and where. All rows of a plan write first; then each
row reads all its slots back, and its next token is a hash of what they hold. A wrong slot, a
missing picture, or KV that was overwritten gives a wrong answer, as with a real model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mmserve.core import (
    UNDRAWN,
    Begun,
    ForwardPlan,
    LedgerBroken,
    MmserveError,
    Pending,
    PlanRow,
    RowSampling,
    SampledRow,
    SampledTokens,
)

__all__ = ["FakeRunner"]

Words = NDArray[np.uint64]
Scores = tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...]

_EMPTY = np.uint64(0xDEAD)
_MOST_UNDER_WAY = 2


class FakeRunner:
    """Carries out plans on a store of hashes.

    Args:
        num_slots: slots of the store.
        vocab_size: drawn tokens are in [0, vocab_size).
        eos: a token that the hash draws about once in eight times, or None.
        rule: gives the next token from the token ids that the slots hold, instead of the hash.
        looks_ahead: whether it wants foreseen steps begun early.
    """

    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        eos: int | None = None,
        rule: Callable[[list[int]], int] | None = None,
        *,
        looks_ahead: bool = False,
    ) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.num_rows = 0
        self.encodes: dict[bytes, int] = {}
        """How often each item was encoded."""
        self.features: set[bytes] = set()
        """Items that are encoded now."""
        self.num_begun = 0
        """Steps whose rows had been begun before the step was launched."""
        self.looks_ahead = looks_ahead
        self.row_errors: Mapping[int, Exception] = {}
        """Errors that single rows give, by sequence id; set by a test."""
        self._vocab_size = vocab_size
        self._eos = eos
        self._rule = rule
        self._words = np.full(num_slots, _EMPTY, dtype=np.uint64)
        self._token_ids = np.full(num_slots, -1, dtype=np.int64)
        self._failure: Exception | None = None
        self._is_late = False
        self._under_way: list[_FakeStep] = []

    def fail_next(self, error: Exception, *, is_late: bool = False) -> None:
        """Make the next step fail as a whole, with its slots spoiled; if late, at its finish.

        Changes: that step.
        """
        self._failure, self._is_late = error, is_late

    def execute(self, plan: ForwardPlan) -> SampledTokens:
        """Launch the step and finish it. Raises LedgerBroken as `launch`."""
        return self.launch(plan).finish()

    def begin(self, plan: ForwardPlan, after: Pending) -> Begun:
        """Write the rows of a foreseen step.

        Raises:
            LedgerBroken: a row's token is known already, or `after` draws none for it; or as
                `launch`.

        Changes: the store.
        """
        self._check_slots(plan)
        drawn = after.outcome if isinstance(after, _FakeStep) else None
        ids = {} if not isinstance(drawn, SampledTokens) else _drawn(drawn)
        for row in plan.rows:
            if row.token_ids.tolist() != [UNDRAWN] or ids.get(row.sequence_id) is None:
                raise LedgerBroken("a row was foreseen that draws nothing", step=plan.step)
            self._write(replace(row, token_ids=np.array([ids[row.sequence_id]])))
        return _Written(plan)

    def launch(self, plan: ForwardPlan, begun: Begun | None = None) -> Pending:
        """Do the step; what it gave is told at the finish. Rows begun are not written again.

        Raises:
            LedgerBroken: the plan uses features that are not encoded, encodes twice, or writes
                a slot twice; or two steps are under way already.

        Changes: the store, the features, the counts.
        """
        if len(self._under_way) >= _MOST_UNDER_WAY:
            raise LedgerBroken("more than two steps are under way", step=plan.step)
        self._check_slots(plan)
        step = _FakeStep(self._under_way, plan.step)
        if self._failure is not None:
            error, self._failure = self._failure, None
            for row in plan.rows:
                self._words[row.slots[row.start :]] = _EMPTY
            if not self._is_late:
                raise error
            step.outcome = error
        else:
            step.outcome = self._done(plan, begun)
        self._under_way.append(step)
        return step

    def _done(self, plan: ForwardPlan, begun: Begun | None) -> SampledTokens:
        """Changes: the store, the features, the counts."""
        self._encode(plan)
        self.num_begun += begun is not None
        for row in plan.rows if begun is None else ():
            self._write(row)
        self.num_steps += 1
        self.num_rows += len(plan.rows)
        self.num_tokens += plan.num_tokens
        masks = {} if plan.masks is None else plan.masks.fill()
        rows = tuple(self._answer(row, masks.get(place)) for place, row in enumerate(plan.rows))
        encode_ms = float(len(plan.encode))
        return SampledTokens(plan.step, rows, encode_ms=encode_ms, forward_ms=1.0)

    def _check_slots(self, plan: ForwardPlan) -> None:
        written = [row.slots[row.start :] for row in plan.rows]
        for row, slots in zip(plan.rows, written, strict=True):
            if not len(row.token_ids) or len(slots) != len(row.token_ids):
                raise LedgerBroken("a row has not one slot a token", step=plan.step)
            if len(np.unique(row.slots)) != len(row.slots):
                raise LedgerBroken("a row uses a slot twice", step=plan.step)
        every = np.concatenate([np.empty(0, dtype=np.int64), *written])
        if len(np.unique(every)) != len(every):
            raise LedgerBroken("two rows write one slot", step=plan.step)

    def _encode(self, plan: ForwardPlan) -> None:
        self.features.difference_update(plan.drop)
        for item in plan.encode:
            if item.digest in self.features:
                raise LedgerBroken("a picture is encoded that is at hand", step=plan.step)
            self.features.add(item.digest)
            self.encodes[item.digest] = self.encodes.get(item.digest, 0) + 1
        uses = [use for row in plan.rows for use in row.features]
        if any(use.digest not in self.features for use in uses):
            raise LedgerBroken("features are used that are not encoded", step=plan.step)

    def _write(self, row: PlanRow) -> None:
        contents = _mix(row.token_ids.astype(np.uint64))
        for use in row.features:
            offsets = np.arange(use.feature_start, use.feature_start + use.num_tokens)
            contents[use.row_start : use.row_start + use.num_tokens] = _mix(
                _mix(offsets.astype(np.uint64)) ^ _digest_word(use.digest)
            )
        positions = np.arange(row.start, row.start + len(row.token_ids), dtype=np.uint64)
        slots = row.slots[row.start :]
        self._words[slots] = _mix(contents ^ _mix(~positions))
        self._token_ids[slots] = row.token_ids

    def _answer(
        self, row: PlanRow, mask: NDArray[np.uint32] | MmserveError | None
    ) -> SampledRow:
        error = self.row_errors.get(row.sequence_id)
        if isinstance(mask, MmserveError):
            error, mask = error or mask, None
        if error is not None:
            return SampledRow(row.sequence_id, error=error)
        places = np.arange(len(row.slots), dtype=np.uint64)
        prefixes = _mix(np.cumsum(_mix(self._words[row.slots] + places)))
        scores, rivals = self._scores(row, prefixes), _rivals(row, prefixes)
        if row.sampling is None:
            return SampledRow(row.sequence_id, prompt_logprobs=scores, rival_logprobs=rivals)
        sampling = row.sampling if mask is None else replace(row.sampling, allowed=mask)
        token_id = self._draw(row, sampling, prefixes[-1])
        logprob = _logprob(prefixes[-1], token_id)
        top = self._top(prefixes[-1], row.sampling.params.top_logprobs)
        return SampledRow(row.sequence_id, token_id, logprob, top, scores, rivals)

    def _draw(self, row: PlanRow, sampling: RowSampling, word: np.uint64) -> int:
        words = np.array([word], dtype=np.uint64)
        if sampling.params.temperature > 0:
            seed = np.array([sampling.seed % 2**64], dtype=np.uint64)
            words = _mix(words ^ _mix(seed) ^ _mix(np.array([sampling.position], np.uint64)))
        number = int(words[0])
        usable = self._usable(sampling)
        if not usable.any():
            raise LedgerBroken("no token is allowed", sequence_id=row.sequence_id)
        wanted = number % self._vocab_size
        if self._rule is not None:
            wanted = self._rule(self._token_ids[row.slots].tolist())
        elif self._eos is not None and (number >> 40) % 8 == 0:
            wanted = self._eos
        if usable[wanted]:
            return wanted
        choices = np.flatnonzero(usable)
        return int(choices[number % len(choices)])

    def _usable(self, sampling: RowSampling) -> NDArray[np.bool_]:
        """Which tokens may come, [vocab_size]."""
        usable = np.ones(self._vocab_size, dtype=np.bool_)
        if sampling.allowed is not None:
            token_ids = np.arange(self._vocab_size)
            words = sampling.allowed[token_ids // 32]
            usable = (words >> (token_ids % 32).astype(np.uint32)) & 1 == 1
        usable[list(sampling.banned_ids)] = False
        return usable

    def _scores(self, row: PlanRow, prefixes: Words) -> Scores:
        """Scores of the known tokens at positions [logprobs_from, stop], from start + 1 on."""
        if row.logprobs_from is None:
            return ()
        token_ids = [*row.token_ids.tolist(), *([] if row.next_id is None else [row.next_id])]
        first = max(row.logprobs_from, row.start + 1)
        return tuple(
            (position, _logprob(prefixes[position - 1], token_ids[position - row.start]), ())
            for position in range(first, row.start + len(token_ids))
        )

    def _top(self, word: np.uint64, num_top: int) -> tuple[tuple[int, float], ...]:
        if not num_top:
            return ()
        ranked = [(token_id, _logprob(word, token_id)) for token_id in range(self._vocab_size)]
        return tuple(sorted(ranked, key=lambda pair: -pair[1])[:num_top])


@dataclass(frozen=True, slots=True, eq=False)
class _Written:
    """See `Begun`: its rows are written."""

    plan: ForwardPlan


def _drawn(sampled: SampledTokens) -> dict[int, int | None]:
    """Drawn tokens by sequence. Pure."""
    return {row.sequence_id: row.token_id for row in sampled.rows}


class _FakeStep:
    """See `Pending`; checks that steps are finished once and in order."""

    def __init__(self, under_way: list[_FakeStep], number: int) -> None:
        self.outcome: SampledTokens | Exception | None = None
        self._under_way = under_way
        self._number = number

    def finish(self) -> SampledTokens:
        """See `Pending.finish`. Raises LedgerBroken if it is not this step's turn."""
        if not self._under_way or self._under_way[0] is not self:
            raise LedgerBroken("a step is finished out of turn", step=self._number)
        del self._under_way[0]
        if not isinstance(self.outcome, SampledTokens):
            raise self.outcome or LedgerBroken("a step gave nothing", step=self._number)
        return self.outcome


def _rivals(
    row: PlanRow, prefixes: Words
) -> tuple[tuple[int, int, float, tuple[tuple[int, float], ...]], ...]:
    """Scores of the row's rivals."""
    return tuple(
        (position, token_id, _logprob(prefixes[position - 1], token_id), ())
        for position, token_id in row.rivals
    )


def _mix(words: Words) -> Words:
    """Scramble uint64 words, each by itself. Source: SplitMix64 (Steele, 2014), finalizer."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _digest_word(digest: bytes) -> np.uint64:
    """A digest as one word."""
    halves = np.frombuffer(digest.ljust(16, b"\0")[:16], dtype=np.uint64)
    mixed = _mix(halves)
    return np.uint64(int(mixed[0]) ^ (int(mixed[1]) * 3 % 2**64))


def _logprob(word: np.uint64, token_id: int) -> float:
    """A log-probability that depends on all tokens before and on the token."""
    mixed = _mix(np.array([word ^ np.uint64(token_id * 0x2545F491)], dtype=np.uint64))
    return -float(int(mixed[0]) >> 40) / 2**20 - 0.001
