"""What a caller gets back: pieces of text as they become certain, then exactly one end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from mmserve.core.errors import MmserveError

__all__ = [
    "CacheKind",
    "CacheOutcome",
    "CacheUse",
    "Finish",
    "FrameReport",
    "Output",
    "PromptReport",
    "Timing",
    "TokenLogprob",
    "Usage",
    "cache_table",
    "cache_uses",
    "read_cache_table",
    "total_usage",
]

CacheKind = Literal["text", "image", "video"]
"""What a prompt token stands for; "video" is a token of a clip's frame."""
CacheOutcome = Literal["hit", "never_seen", "evicted", "namespace", "order", "boundary"]
"""Whether a prompt token's KV was there already, and if not, why not.

    never_seen   nobody sent these tokens before, as far as is remembered
    evicted      they were cached, and their slots were needed
    namespace    they are cached for another salt only
    order        this picture is cached, but behind other tokens
    boundary     they are cached, but a match may not end there: inside a page or a span that
                 must stay whole, or at the last token, whose logits are needed
"""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability (None where nothing precedes it, or at media positions).

    `piece` is the token's own bytes, which may be part of a character. `top` holds the
    likeliest tokens of the position as (token id, log-probability, bytes), best first. A token
    that `is_forced` was not drawn: a grammar left no choice about its text.
    """

    token_id: int
    logprob: float | None
    piece: bytes
    top: tuple[tuple[int, float, bytes], ...] = ()
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class CacheUse:
    """So many prompt tokens of one kind had one outcome."""

    kind: CacheKind
    outcome: CacheOutcome
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one sequence so far.

    `cache` says of each prompt token whether it was a hit or why it was a miss, once it is
    known: at the end of a sequence that ran, its counts sum up to `prompt_tokens`. Each pair of
    kind and outcome is there at most once. `forced_tokens` of the completion were not drawn, as
    its grammar left no choice.
    """

    prompt_tokens: int
    completion_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0
    cached_tokens: int = 0
    cached_text_tokens: int = 0
    cached_image_tokens: int = 0
    cached_video_tokens: int = 0
    num_retractions: int = 0
    forced_tokens: int = 0
    cache: tuple[CacheUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds spent for one sequence by stage; 0 where a stage was not needed."""

    fetch: float = 0.0
    decode: float = 0.0
    preprocess: float = 0.0
    encode: float = 0.0
    queue: float = 0.0
    prefill: float = 0.0
    decode_text: float = 0.0
    first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Finish:
    """Why a sequence ended; `matched` is the stop text or token id; "error" sets `error`."""

    reason: Literal["stop", "length", "abort", "error"]
    matched: str | int | None = None
    error: MmserveError | None = None


@dataclass(frozen=True, slots=True)
class FrameReport:
    """Frames taken from one clip: timestamps in seconds, and whether some were unreadable."""

    timestamps_s: tuple[float, ...]
    note: str | None = None


@dataclass(frozen=True, slots=True)
class PromptReport:
    """Known as soon as a request is accepted: the rendered prompt and the sampled frames.

    `options` holds the token ids of each option of the request, without the prompt's.
    """

    token_ids: tuple[int, ...] = field(repr=False)
    clips: tuple[FrameReport, ...] = ()
    options: tuple[tuple[int, ...], ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Output:
    """News of sequence `index` of a request: text and tokens since the last news.

    `text` never holds part of a character or text that may still become a stop text. Exactly
    one Output of a sequence has `finish`; it is the last, and carries `timing`.
    """

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...]
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    finish: Finish | None = None
    timing: Timing | None = None


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum of several counts, field by field. Pure."""
    counted = tuple(usages)
    names = [spec.name for spec in fields(Usage) if spec.name != "cache"]
    sums = {name: sum(getattr(usage, name) for usage in counted) for name in names}
    return Usage(**sums, cache=cache_uses(use for usage in counted for use in usage.cache))


def cache_uses(uses: Iterable[CacheUse]) -> tuple[CacheUse, ...]:
    """The counts with each pair of kind and outcome once, in order of appearance. Pure."""
    sums: dict[tuple[CacheKind, CacheOutcome], int] = {}
    for use in uses:
        pair = (use.kind, use.outcome)
        sums[pair] = sums.get(pair, 0) + use.num_tokens
    return tuple(CacheUse(kind, outcome, num) for (kind, outcome), num in sums.items())


def cache_table(uses: Iterable[CacheUse]) -> dict[str, dict[str, int]]:
    """Tokens by kind, then by outcome, as answers in JSON hold them. Pure."""
    table: dict[str, dict[str, int]] = {}
    for use in cache_uses(uses):
        table.setdefault(use.kind, {})[use.outcome] = use.num_tokens
    return table


def read_cache_table(table: object) -> tuple[CacheUse, ...]:
    """The counts in a table of `cache_table`; what has another form is left out. Pure."""
    rows = table if isinstance(table, dict) else {}
    return tuple(
        CacheUse(kind, outcome, row[outcome])
        for kind in get_args(CacheKind)
        if isinstance(row := rows.get(kind), dict)
        for outcome in get_args(CacheOutcome)
        if isinstance(row.get(outcome), int)
    )
