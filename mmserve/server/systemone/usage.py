"""Tokens of a call whose questions share a state: each place of the tree counts once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mmserve.core import PromptReport
from mmserve.core.beginnings import common_length
from mmserve.server.drafts import Draft

__all__ = ["num_tree_tokens", "usage_of"]

_Ids = tuple[int, ...]


def usage_of(reports: Sequence[PromptReport], drafts: Sequence[Draft]) -> dict[str, Any]:
    """Usage in OpenAI's form, with the tokens that the engine computed for the call.

    Args:
        reports: of each question.
        drafts: of all prompts and options; the first is a prompt.

    `computed_tokens` counts what was not in the cache and what no other branch of the call
    computed; `cached_tokens` is the rest. Pure.
    """
    prompt = num_tree_tokens(reports)
    computed = sum(d.usage.prompt_tokens - d.usage.cached_tokens for d in drafts)
    first = drafts[0].usage
    return {
        "prompt_tokens": prompt,
        "completion_tokens": 0,
        "total_tokens": prompt,
        "computed_tokens": computed,
        "prompt_tokens_details": {
            "cached_tokens": max(0, prompt - computed),
            "image_tokens": first.image_tokens,
            "video_tokens": first.video_tokens,
        },
    }


def num_tree_tokens(reports: Sequence[PromptReport]) -> int:
    """Different places in the tree of all prompts and their options. Pure.

    Cost: prompts are compared as wholes, options token by token.
    """
    prompts = sorted({report.token_ids for report in reports})
    num_tokens = sum(map(len, prompts)) - sum(common_length(a, b) for a, b in pairwise(prompts))
    behind: dict[_Ids, set[_Ids]] = {}
    for report in reports:
        places = behind.setdefault(report.token_ids, set())
        for ids in report.options:
            places.update(ids[:end] for end in range(1, len(ids) + 1))
    return num_tokens + sum(map(len, behind.values()))
