"""What a caller gets back: pieces of text as they become certain, then exactly one end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from mmserve.core.errors import MmserveError

__all__ = ["Finish", "FrameReport", "Output", "PromptReport", "Timing", "TokenLogprob", "Usage"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log-probability (None where nothing precedes it, or at media positions).

    `piece` is the token's own bytes, which may be part of a character. `top` holds the
    likeliest tokens of the position as (token id, log-probability, bytes), best first.
    """

    token_id: int
    logprob: float | None
    piece: bytes
    top: tuple[tuple[int, float, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one sequence so far."""

    prompt_tokens: int
    completion_tokens: int = 0
    image_tokens: int = 0
    video_tokens: int = 0
    cached_tokens: int = 0
    cached_text_tokens: int = 0
    cached_image_tokens: int = 0
    cached_video_tokens: int = 0
    num_retractions: int = 0


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
    """Known as soon as a request is accepted: the rendered prompt and the sampled frames."""

    token_ids: tuple[int, ...] = field(repr=False)
    clips: tuple[FrameReport, ...] = ()


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
