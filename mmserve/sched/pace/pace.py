"""How much prompt a step may take beside running streams, so that their tokens keep coming.

    0            decode                  goal                    1.5 target
    |--- rows ---|------- room ----------|------- stretch -------|---- long ----
                 prompt tokens, pictures   a picture by itself,    a picture by itself,
                                           once debt is paid       once in 150 steps

A step takes as many prompt tokens and patches as fit into its *room*. A picture cannot be cut:
if it is larger than the room it comes by itself, and what it took beyond the goal is a *debt*
that the next steps pay back, each at most half of its room.

Progress, whatever the target: a least chunk (16 tokens, fewer where they would take more than
half the target, at least 1) in every 8 steps, room of at least an eighth of the decode time (a
sixteenth in debt), and a picture in every 300 steps.

Steps over 1.5 targets, *long* ones, stay below 1 %: pictures make one in 150 steps, and what
noise makes beyond one in 200 lowers the goal (`care`), down to half the target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmserve.sched.pace.step_cost import LinearCost

__all__ = ["LONE_TOKENS", "UNLIMITED", "StepBudget", "StepPace"]

UNLIMITED = 1 << 40
"""More tokens or patches than any picture has."""

LONE_TOKENS = 16
"""Prompt tokens that may come before a picture and leave it the only one that counts."""

_LIMIT = 1.5
"""Steps longer than this many targets are *long* and are kept below one in a hundred."""

_LONG_EVERY = 150
"""Steps from one long step to the next picture that would make one."""

_PICTURE_EVERY = 300
"""Steps after which a waiting picture comes even if other steps were long meanwhile."""

_LEAST_TOKENS = 16
_LEAST_EVERY = 8
_LEAST_SHARE = 0.125
_FIRST_REACH = 8
_REACH_KEPT = 0.99
_CARE_LOST = 0.1
_CARE_REGAINED = 0.0005
"""Lost by a long step that was not foreseen, regained by any: even at one in 200 steps."""

_LEAST_CARE = 0.5
_SPREADS = 2.5
"""Standard deviations of a step's time kept below the limit."""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What a step may take beyond its decode rows.

    Args:
        tokens: prompt tokens, if no picture is encoded.
        patches: patches, if several pictures are encoded.
        tokens_per_patch: prompt tokens that each patch encoded takes off `tokens`.
        lone_tokens: most tokens of a span that must not be cut, as the only prompt of the step.
        lone_patches: most patches of a picture that is the only one of the step; one token
            of its row may come with it, however many `tokens` it took.
    """

    tokens: int
    patches: int
    tokens_per_patch: float
    lone_tokens: int
    lone_patches: int

    def patches_beside(self, num_tokens: int) -> int:
        """Patches left beside this many prompt tokens, at least 0. Pure."""
        return min(self.patches, _fit(self.tokens - num_tokens, self.tokens_per_patch))

    def tokens_beside(self, num_patches: int) -> int:
        """Prompt tokens left beside this many patches, at least 0. Pure."""
        return int(max(0.0, self.tokens - self.tokens_per_patch * num_patches))


class StepPace:
    """Learns what steps cost and keeps those with running streams near a target.

    Args:
        target_itl_ms: time wanted between two tokens of a stream; None for no limit.

    Deterministic: its budgets follow from what it was told. Cost: 0.1 ms a step with a target.

    Source: Sarathi-Serve (2024), section 4, fills steps with prefill up to a bound on decode
    latency too, but with a fixed number of tokens. The care follows a quantile as in adaptive
    conformal inference (Gibbs and Candes, 2021). Costs: see `LinearCost`.
    """

    def __init__(self, target_itl_ms: float | None) -> None:
        self._target_ms = target_itl_ms
        self._forward = LinearCost(3, kept=0.95)
        self._encode = LinearCost(2, kept=0.7)
        self._debt_ms = 0.0
        self._care = 1.0
        self._reach_tokens = float(_FIRST_REACH)
        self._steps_since_long = _LONG_EVERY
        self._steps_since_picture = _PICTURE_EVERY
        self._steps_since_prompt = _LEAST_EVERY

    @property
    def debt_ms(self) -> float:
        """What steps took beyond their goal and others have not given back yet. Pure."""
        return self._debt_ms

    def step_ms(self, num_decode_rows: int, num_prefill_tokens: int, num_patches: int) -> float:
        """Expected time of a step as far as it is learnt. Pure."""
        forward_ms = self._forward.predict(_work(num_decode_rows, num_prefill_tokens))
        return forward_ms + (self._encode.predict(_pixels(num_patches)) if num_patches else 0.0)

    def budget(
        self, num_decode_rows: int, *, most_tokens: int, most_patches: int
    ) -> StepBudget:
        """What the next step may take beside rows that lack exactly one token.

        Args:
            num_decode_rows: streams that wait for this step.
            most_tokens: prompt tokens that fit for other reasons.
            most_patches: patches that fit for other reasons.

        Returns tokens in [0, most_tokens] and patches in [0, most_patches]; the lone ones may
        be more. Without a target, or without streams, there is no limit but those given.

        Pure.
        """
        if self._target_ms is None or num_decode_rows == 0:
            return StepBudget(most_tokens, most_patches, 0.0, UNLIMITED, UNLIMITED)
        decode_ms = self._forward.predict(_work(num_decode_rows, 0))
        room_ms = self._goal_ms(decode_ms) - decode_ms
        room_ms -= min(self._debt_ms, room_ms / 2)
        token_ms, patch_ms = self._forward.predict(_TOKEN), self._encode.predict(_PATCH)
        lone_ms = room_ms
        if self._may_be_long():
            lone_ms = float("inf")
        elif self._debt_ms == 0:
            lone_ms = max(room_ms, self._limit_ms(self._encode) - decode_ms)
        return StepBudget(
            tokens=min(most_tokens, self._tokens(room_ms, token_ms)),
            patches=min(most_patches, self._patches(room_ms, patch_ms)),
            tokens_per_patch=min(patch_ms / token_ms, UNLIMITED) if token_ms > 0 else 0.0,
            lone_tokens=_fit(lone_ms, token_ms),
            lone_patches=self._patches(lone_ms, patch_ms),
        )

    def note(
        self,
        num_decode_rows: int,
        num_prefill_tokens: int,
        num_patches: int,
        forward_ms: float,
        encode_ms: float,
    ) -> None:
        """Learn from a step that ran. Changes: costs, debt, and when long steps may come."""
        if self._target_ms is None:
            return
        decode_ms = self.step_ms(num_decode_rows, 0, 0)
        expected_ms = self.step_ms(num_decode_rows, num_prefill_tokens, num_patches)
        if num_patches and not self._encode.is_known:
            expected_ms = math.inf
        self._forward.note(_work(num_decode_rows, num_prefill_tokens), forward_ms)
        if num_patches:
            self._encode.note(_pixels(num_patches), encode_ms)
        self._reach_tokens = max(self._reach_tokens * _REACH_KEPT, float(num_prefill_tokens))
        self._reach_tokens = max(self._reach_tokens, float(_FIRST_REACH))
        if num_decode_rows == 0:
            self._debt_ms = 0.0
            return
        step_ms = forward_ms + encode_ms
        owed_ms = self._debt_ms + step_ms - self._goal_ms(decode_ms)
        self._debt_ms = min(max(owed_ms, 0.0), 2 * self._target_ms)
        is_long = step_ms > _LIMIT * self._target_ms
        is_surprise = is_long and expected_ms <= _LIMIT * self._target_ms
        self._care *= 1 + _CARE_REGAINED - (_CARE_LOST if is_surprise else 0.0)
        self._care = min(max(self._care, _LEAST_CARE), 1.0)
        self._steps_since_long = 0 if is_long else self._steps_since_long + 1
        self._steps_since_picture = 0 if num_patches else self._steps_since_picture + 1
        self._steps_since_prompt = 0 if num_prefill_tokens else self._steps_since_prompt + 1

    def note_encode(self, num_patches: int, encode_ms: float) -> None:
        """Learn from a step that had no rows. Changes: the cost of pictures."""
        if self._target_ms is not None:
            self._encode.note(_pixels(num_patches), encode_ms)

    def _limit_ms(self, cost: LinearCost) -> float:
        """Expected time of a step that is hardly ever long, if it is spread like this cost."""
        return (
            self._care * _LIMIT * (self._target_ms or 0.0) * math.exp(-_SPREADS * cost.spread)
        )

    def _goal_ms(self, decode_ms: float) -> float:
        """Time of a full step: the target, or what leaves prefill its least share."""
        aim_ms = min(self._care * (self._target_ms or 0.0), self._limit_ms(self._forward))
        return max(aim_ms, decode_ms * (1 + _LEAST_SHARE))

    def _may_be_long(self) -> bool:
        return (
            self._steps_since_long >= _LONG_EVERY or self._steps_since_picture >= _PICTURE_EVERY
        )

    def _tokens(self, room_ms: float, token_ms: float) -> int:
        """Tokens for a room; never more than twice what was seen lately.

        Too few to be worth a row wait until they are the least chunk, 8 steps at most.
        """
        num_fit = min(_fit(room_ms, token_ms), int(2 * self._reach_tokens))
        least_ms = (self._target_ms or 0.0) / 2
        num_least = max(1, min(_LEAST_TOKENS, _fit(least_ms, token_ms)))
        if num_fit >= num_least:
            return num_fit
        steps = self._steps_since_prompt + 1
        is_due = steps >= _LEAST_EVERY or room_ms * steps >= num_least * token_ms
        return num_least if is_due else 0

    def _patches(self, room_ms: float, patch_ms: float) -> int:
        """Patches whose encoding takes this long; of an unknown cost, none or all."""
        if not self._encode.is_known:
            return UNLIMITED if room_ms == float("inf") else 0
        return _fit(room_ms - self._encode.predict(_pixels(0)), patch_ms)


_TOKEN = (0.0, 0.0, 1 / 64)
_PATCH = (0.0, 1 / 256)


def _work(num_decode_rows: int, num_prefill_tokens: int) -> tuple[float, ...]:
    return (1.0, num_decode_rows / 4, num_prefill_tokens / 64)


def _pixels(num_patches: int) -> tuple[float, ...]:
    return (1.0, num_patches / 256)


def _fit(room_ms: float, each_ms: float) -> int:
    """How many of a cost fit, in [0, UNLIMITED]."""
    if room_ms <= 0:
        return 0
    if room_ms >= each_ms * UNLIMITED:
        return UNLIMITED
    return int(room_ms / each_ms)
