"""Options scored as branches of one prompt: exact log-probabilities of each option's tokens.

prompt, nothing generated    sequence 0
prompt and option k          sequence k    all in one request, see `core.Request.options`
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest

from mmserve.server.answer import collect
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft
from mmserve.server.events import unless_gone
from mmserve.server.native.request import NativeCall
from mmserve.server.values import finite

__all__ = ["ChoiceScores", "score_choices"]


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """The prompt's own answer, of no tokens, and one entry for each option in order."""

    base: Draft
    choices: list[dict[str, Any]]


async def score_choices(http: HttpRequest, call: NativeCall, opened: OpenCall) -> ChoiceScores:
    """Scores of every option of `call`, whose one request `opened` stands for.

    Raises what it is refused with. Changes: `opened` is closed.
    """
    try:
        return await unless_gone(http, opened, _read(call, opened))
    finally:
        opened.close()


async def _read(call: NativeCall, opened: OpenCall) -> ChoiceScores:
    report = (await opened.accepted())[0]
    base, *drafts = await collect(opened)
    choices = [
        {
            "text": option,
            "token_ids": list(token_ids),
            "logprobs": [finite(entry.logprob) for entry in draft.prompt_logprobs or ()],
        }
        for option, token_ids, draft in zip(
            call.requests[0].options, report.options, drafts, strict=False
        )
    ]
    return ChoiceScores(base, choices)
