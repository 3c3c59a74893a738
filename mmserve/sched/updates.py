"""What the scheduler tells the engine."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.core import Finish, Jump, Usage
from mmserve.sched.sequence import Sequence

__all__ = [
    "NO_GROWTH",
    "Growth",
    "RivalScore",
    "SchedCounts",
    "Score",
    "SequenceUpdate",
    "Token",
    "Top",
    "Totals",
    "update_of",
]

Top = tuple[tuple[int, float], ...]
Token = tuple[int, float | None, Top]
Score = tuple[int, float, Top]
RivalScore = tuple[int, int, float, Top]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceUpdate:
    """News of one sequence: a token, what was forced, scores of known tokens, perhaps its end.

    The answer grows by `opening`, then by `token_id`, then by `jump`, which may replace tokens
    of earlier updates; a token at or before the end of a jump is never replaced later.

    A stopping token is in `token_id` and is counted. Exactly one update of a sequence has
    `finish`, and it is the last. With nothing to generate, `token_id` of the last update may
    hold the likeliest next token, which is not counted.

    Args:
        opening: tokens that were certain before any was drawn.
        jump: tokens that were certain after the drawn one.
        prompt_logprobs: (position, log-probability, top) of prompt tokens, each reported once.
        forced_logprobs: the same of the answer's forced tokens, by position in the answer; they
            come when their step has run, and are known before `token_id` is drawn.
        rival_logprobs: (position, token id, log-probability, top) of the spec's rivals; after a
            retraction perhaps once more.
        queue_ms: from arrival to the first step, so far.
        prefill_ms: forward time of the steps that computed prompt tokens of it, so far.
        encode_ms: encode time of the steps that encoded media for it, so far.
    """

    sequence_id: int
    usage: Usage
    token_id: int | None = None
    logprob: float | None = None
    top: Top = ()
    opening: tuple[int, ...] = ()
    jump: Jump | None = None
    prompt_logprobs: tuple[Score, ...] = ()
    rival_logprobs: tuple[RivalScore, ...] = ()
    forced_logprobs: tuple[Score, ...] = ()
    finish: Finish | None = None
    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    encode_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Growth:
    """What a step gave a sequence, in order; `scores` are by position in prompt and answer."""

    scores: tuple[Score, ...] = ()
    rivals: tuple[RivalScore, ...] = ()
    opening: tuple[int, ...] = ()
    token: Token | None = None
    jump: Jump | None = None

    @property
    def is_news(self) -> bool:
        """Whether a step that drew no token gave something to tell. Pure."""
        return bool(self.scores or self.rivals or self.opening)


NO_GROWTH = Growth()


@dataclass(slots=True)
class Totals:
    """Sums since the start; they only grow."""

    steps: int = 0
    tokens_computed: int = 0
    prompt_tokens_computed: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    replaced_tokens: int = 0
    jumps: int = 0
    encoded_items: int = 0
    retractions: int = 0
    finished: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedCounts:
    """A look at the ledgers: free + cached + held = total slots; then sums since the start.

    Args:
        slots_cached: hold KV that nobody uses now and that may be evicted.
        slots_held: used by running sequences.
        feature_tokens: tokens of encoded media kept on the device.
        prompt_tokens_computed: recomputation after a retraction included.
        cached_tokens: prompt tokens that came from the tree, or from a neighbour in a step.
        generated_tokens: drawn.
        forced_tokens: added to answers by jumps.
        replaced_tokens: tokens of answers that jumps replaced.
        early_items: of those encoded, the ones that were only hinted at by then.
        early_items_used: of these, the ones a sequence came for while they were kept.
        finished: sequences ended, by reason.
    """

    slots_total: int
    slots_free: int
    slots_cached: int
    slots_held: int
    feature_tokens: int
    running: int
    waiting: int
    steps: int
    tokens_computed: int
    prompt_tokens_computed: int
    cached_tokens: int
    generated_tokens: int
    forced_tokens: int
    replaced_tokens: int
    jumps: int
    encoded_items: int
    early_items: int
    early_items_used: int
    retractions: int
    finished: dict[str, int]


def update_of(
    sequence: Sequence,
    now_s: float,
    growth: Growth = NO_GROWTH,
    finish: Finish | None = None,
) -> SequenceUpdate:
    """News of a sequence as it stands at clock `now_s`. Pure."""
    token_id, logprob, top = growth.token if growth.token is not None else (None, None, ())
    num_prompt = sequence.num_prompt
    started_s = now_s if sequence.admitted_s is None else sequence.admitted_s
    return SequenceUpdate(
        sequence_id=sequence.sequence_id,
        usage=sequence.usage(),
        token_id=token_id,
        logprob=logprob,
        top=top,
        opening=growth.opening,
        jump=growth.jump,
        prompt_logprobs=tuple(score for score in growth.scores if score[0] < num_prompt),
        rival_logprobs=growth.rivals,
        forced_logprobs=tuple(
            (position - num_prompt, logprob, top)
            for position, logprob, top in growth.scores
            if position >= num_prompt
        ),
        finish=finish,
        queue_ms=(started_s - sequence.arrived_s) * 1e3,
        prefill_ms=sequence.prefill_ms,
        encode_ms=sequence.encode_ms,
    )
