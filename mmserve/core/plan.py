"""One step on the device, as data: what the planning wing decides and the tensor wing obeys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mmserve.core.errors import MmserveError
from mmserve.core.sampling import SamplingParams

if TYPE_CHECKING:  # keeps the start of the command line and the language light
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "UNDRAWN",
    "EncodeItem",
    "FeatureUse",
    "ForwardPlan",
    "MaskSource",
    "PlanRow",
    "RowSampling",
    "SampledRow",
    "SampledTokens",
]

UNDRAWN = -1
"""Stands in a foreseen row for the token that the step before draws for its sequence."""


@dataclass(frozen=True, slots=True)
class FeatureUse:
    """Where rows of an encoded item go among the tokens that a row computes.

    Feature rows [feature_start, feature_start + num_tokens) replace the embeddings of tokens
    [row_start, row_start + num_tokens), counted from the first token computed in this step.
    """

    digest: bytes
    feature_start: int
    row_start: int
    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class RowSampling:
    """Everything that choosing one row's next token depends on.

    Args:
        params: the request's parameters.
        seed: 64-bit; with `position` keys a counter-based generator, so neighbours do not
            matter.
        position: tokens drawn before this one.
        output_ids: int64 [n], tokens of the answer so far (penalties).
        prompt_ids: int64 [n], given only if `params.repetition_penalty` is not 1.
        allowed: uint32 [W] bitmask of allowed tokens, bit t of word t // 32, or None for all;
            the runner takes it from the plan's `masks`.
        banned_ids: tokens that may not come now (end tokens before `min_new_tokens`).
    """

    params: SamplingParams
    seed: int
    position: int
    output_ids: NDArray[np.int64]
    prompt_ids: NDArray[np.int64] | None = None
    allowed: NDArray[np.uint32] | None = None
    banned_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PlanRow:
    """One sequence in one step.

    Args:
        sequence_id: whose row it is.
        start: position of the first token computed; tokens [0, start) already have KV, or an
            earlier row of the same plan computes it.
        token_ids: int64 [t], tokens to compute, t >= 1.
        slots: int64 [start + t], KV slot of every token from 0 on; the last t are written now.
        features: encoded media that replace embeddings of some of the t tokens.
        sampling: None while the prompt is not finished; then no token is drawn.
        logprobs_from: None, or p: report the log-probabilities of the known tokens at positions
            [max(p, start + 1), start + t], each given all tokens before it. Position start + t
            is known only if `next_id` is given.
        next_id: token at position start + t, if the prompt goes on beyond this step.
        num_prompt_top: likeliest tokens reported beside each log-probability that
            `logprobs_from` and `rivals` ask for.
        rivals: (position, token id) of tokens other than the row's own, at positions in
            [start + 1, start + t]: report their log-probabilities given all tokens before.
        positions: int64 [3, t], time, row and column of the computed tokens, for models that
            ask; None: start, start + 1 and so on.
        two_way: [start, end) of positions whose tokens see each other both ways; each lies
            wholly among the computed tokens.
    """

    sequence_id: int
    start: int
    token_ids: NDArray[np.int64]
    slots: NDArray[np.int64]
    features: tuple[FeatureUse, ...] = ()
    sampling: RowSampling | None = None
    logprobs_from: int | None = None
    next_id: int | None = None
    num_prompt_top: int = 0
    rivals: tuple[tuple[int, int], ...] = ()
    positions: NDArray[np.int64] | None = None
    two_way: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class EncodeItem:
    """An item to encode before the rows run.

    Args:
        digest: its identity.
        inputs: as the model's processor made them.
        num_patches: what encoding it costs.
    """

    digest: bytes
    inputs: dict[str, NDArray[Any]]
    num_patches: int = 1


class MaskSource(Protocol):
    """Masks of a step's constrained rows, computed when asked for: while the device works."""

    def fill(self) -> Mapping[int, NDArray[np.uint32] | MmserveError]:
        """By the row's place in the plan: its mask uint32 [W], or why that row has to fail.

        To be called once for a step.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ForwardPlan:
    """One step: free `drop` features, encode, then run the rows together, if there are any.

    At each layer all rows write their KV before any attends, so a row may read slots that an
    earlier row of the same plan writes. `masks` are those of rows under a grammar; the runner
    asks for them between launching the rows and drawing tokens.
    """

    step: int
    rows: tuple[PlanRow, ...]
    encode: tuple[EncodeItem, ...] = ()
    drop: tuple[bytes, ...] = ()
    masks: MaskSource | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens computed by the step."""
        return sum(len(row.token_ids) for row in self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class SampledRow:
    """What a row gave.

    Args:
        sequence_id: whose row it was.
        token_id: the drawn token, or None if the row drew none.
        logprob: its log-probability in the model's own distribution, before temperature,
            penalties and masks.
        top: the likeliest tokens there, best first, as (token id, log-probability).
        prompt_logprobs: (position, log-probability, top) of prompt tokens asked for.
        rival_logprobs: (position, token id, log-probability, top) of the row's rivals.
        error: set if this row alone failed; the others are good.
    """

    sequence_id: int
    token_id: int | None = None
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    prompt_logprobs: tuple[tuple[int, float, tuple[tuple[int, float], ...]], ...] = ()
    rival_logprobs: tuple[tuple[int, int, float, tuple[tuple[int, float], ...]], ...] = ()
    error: Exception | None = None


@dataclass(frozen=True, slots=True, eq=False)
class SampledTokens:
    """Result of one plan, rows in the plan's order; times in milliseconds."""

    step: int
    rows: tuple[SampledRow, ...]
    encode_ms: float = 0.0
    forward_ms: float = 0.0
