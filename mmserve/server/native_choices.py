"""Options scored as branches of one prompt: exact log-probabilities of each option's tokens.

prompt, nothing generated          -> P token ids
prompt + option, joined as text    -> ids[P:], if ids[:P] are the prompt's own
prompt + option's own token ids    -> where joining would change the prompt's tokens
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request as HttpRequest

from mmserve.core import BadRequest, Request, TextPart, TokensPart, Turn
from mmserve.server.answer import collect
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft
from mmserve.server.events import unless_gone
from mmserve.server.native_request import NativeCall
from mmserve.server.service import Service
from mmserve.server.values import finite

__all__ = ["ChoiceScores", "score_choices"]


@dataclass(frozen=True, slots=True)
class ChoiceScores:
    """The prompt's own answer, of no tokens, and one entry for each option in order."""

    base: Draft
    choices: list[dict[str, Any]]


async def score_choices(
    service: Service, http: HttpRequest, call: NativeCall, opened: OpenCall, shown_id: str
) -> ChoiceScores:
    """Score every option of `call` after the prompt that `opened` stands for.

    The options share the prompt's KV. Raises what the prompt or an option is refused with.
    Changes: `opened` is closed.
    """
    scoring = _Scoring(service, call.requests[0], call.choices or (), shown_id)
    try:
        return await unless_gone(http, opened, scoring.run(opened))
    finally:
        opened.close()
        scoring.close()


class _Scoring:
    """One select under way. Mutable: it holds the calls it opened."""

    def __init__(
        self, service: Service, request: Request, options: tuple[str, ...], shown_id: str
    ) -> None:
        self._service = service
        self._request = request
        self._options = options
        self._shown_id = shown_id
        self._calls: list[OpenCall] = []

    def close(self) -> None:
        """End what still runs. Changes: the calls."""
        for opened in self._calls:
            opened.close()

    async def run(self, opened: OpenCall) -> ChoiceScores:
        """Scores of all options. Changes: opens a call for each, and one more where needed."""
        prompt_ids = (await opened.accepted())[0].token_ids
        joined = [self._open(_continued(self._request, o), prompt_ids) for o in self._options]
        entries = [
            await self._entry(option, part, prompt_ids)
            for option, part in zip(self._options, joined, strict=True)
        ]
        return ChoiceScores((await collect(opened))[0], entries)

    def _open(self, request: Request, prompt_ids: tuple[int, ...]) -> OpenCall:
        sampling = replace(
            request.sampling, return_logprobs=True, prompt_logprobs_from=len(prompt_ids)
        )
        opened = self._service.calls.open(
            [replace(request, sampling=sampling)], [self._shown_id]
        )
        self._calls.append(opened)
        return opened

    async def _entry(
        self, option: str, opened: OpenCall, prompt_ids: tuple[int, ...]
    ) -> dict[str, Any]:
        option_ids = await _joined_ids(opened)
        if len(option_ids) <= len(prompt_ids) or option_ids[: len(prompt_ids)] != prompt_ids:
            opened.close()
            own_ids = self._service.client.tokenize(option)
            alone = TokensPart(tuple(own_ids))
            request = replace(self._request, parts=(*self._request.parts, alone))
            opened = self._open(request, prompt_ids)
            option_ids = (await opened.accepted())[0].token_ids
        draft = (await collect(opened))[0]
        return {
            "text": option,
            "token_ids": list(option_ids[len(prompt_ids) :]),
            "logprobs": [finite(entry.logprob) for entry in draft.prompt_logprobs or ()],
        }


async def _joined_ids(opened: OpenCall) -> tuple[int, ...]:
    """Ids of prompt and option joined; none where they merge to fewer than the prompt's own."""
    try:
        return (await opened.accepted())[0].token_ids
    except BadRequest as error:
        if error.fields.get("field") != "logprob_start_len":
            raise
        return ()


def _continued(request: Request, option: str) -> Request:
    """The request with the option at its prompt's end, inside an open turn if there is one."""
    last = request.parts[-1]
    if isinstance(last, Turn) and last.is_open:
        inner = replace(last, parts=(*last.parts, TextPart(option)))
        return replace(request, parts=(*request.parts[:-1], inner))
    return replace(request, parts=(*request.parts, TextPart(option)))
