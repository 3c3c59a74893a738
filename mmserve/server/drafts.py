"""What has been said so far: outputs of one sequence added up, and usage of a whole call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from mmserve.core import (
    Finish,
    FrameReport,
    Output,
    PromptReport,
    Timing,
    TokenLogprob,
    Usage,
    cache_table,
)

__all__ = ["Draft", "cache_object", "extras_object", "timing_object", "usage_object"]


class Draft:
    """One sequence's answer as it grows. Mutable; `add` is the only writer."""

    __slots__ = (
        "finish",
        "logprobs",
        "prompt_logprobs",
        "text",
        "timing",
        "token_ids",
        "usage",
    )

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        self.usage = Usage(0)
        self.finish: Finish | None = None
        self.timing: Timing | None = None

    def add(self, output: Output) -> None:
        """Take in the next news. Changes: everything."""
        self.text += output.text
        self.token_ids.extend(output.token_ids)
        self.logprobs.extend(output.logprobs)
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        self.usage = output.usage
        self.finish = output.finish
        self.timing = output.timing or self.timing


def usage_object(drafts: Sequence[Draft], num_samples: int) -> dict[str, Any]:
    """OpenAI's `usage`: each prompt counts once, completions add up. Pure.

    `cached_tokens` is what was there before the call: the least that a sample of it found.
    """
    groups = [
        [draft.usage for draft in drafts[first : first + num_samples]]
        for first in range(0, len(drafts), num_samples)
    ]
    prompt = sum(group[0].prompt_tokens for group in groups)
    completion = sum(usage.completion_tokens for group in groups for usage in group)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "completion_tokens_details": {
            "forced_tokens": sum(usage.forced_tokens for group in groups for usage in group)
        },
        "prompt_tokens_details": {
            "cached_tokens": sum(min(u.cached_tokens for u in group) for group in groups),
            "image_tokens": sum(group[0].image_tokens for group in groups),
            "video_tokens": sum(group[0].video_tokens for group in groups),
        },
    }


def timing_object(drafts: Sequence[Draft]) -> dict[str, float]:
    """Milliseconds by stage: the longest that any sequence spent in it. Pure."""
    timings = [draft.timing for draft in drafts if draft.timing is not None]
    return {
        spec.name: round(max((getattr(t, spec.name) for t in timings), default=0.0), 3)
        for spec in fields(Timing)
    }


def cache_object(drafts: Sequence[Draft], num_samples: int) -> dict[str, dict[str, int]]:
    """Prompt tokens by kind, then by outcome; see `core.CacheUse`. Pure.

    Each prompt counts once: of several samples, the one that found least in the cache.
    """
    groups = [
        [draft.usage for draft in drafts[first : first + num_samples]]
        for first in range(0, len(drafts), num_samples)
    ]
    least = [min(group, key=lambda usage: usage.cached_tokens) for group in groups]
    return cache_table(use for usage in least for use in usage.cache)


def extras_object(
    drafts: Sequence[Draft], reports: Sequence[PromptReport], *, with_timing: bool
) -> dict[str, Any]:
    """What `mmserve` adds to an answer: timing and cache if asked, frames of clips. Pure."""
    extras: dict[str, Any] = {}
    if with_timing:
        extras["timing_ms"] = timing_object(drafts)
        extras["cache"] = cache_object(drafts, len(drafts) // max(1, len(reports)))
    clips = [_clip_object(clip) for report in reports for clip in report.clips]
    if clips:
        extras["clips"] = clips
    return extras


def _clip_object(clip: FrameReport) -> dict[str, Any]:
    return {"timestamps_s": list(clip.timestamps_s), "note": clip.note}
