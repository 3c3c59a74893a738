"""`/v1/systemone`: questions handed in together, scored, and told as one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import (
    Aborted,
    BadRequest,
    ContextTooLong,
    MmserveError,
    PromptReport,
    Request,
)
from mmserve.server.answer import collect, now_s
from mmserve.server.calls import OpenCall
from mmserve.server.clients import Caller, scoped_salt
from mmserve.server.drafts import Draft, extras_object
from mmserve.server.events import unless_gone
from mmserve.server.service import ID_HEADER, Service, shown_id
from mmserve.server.systemone.request import SystemOneCall, systemone_call
from mmserve.server.systemone.scores import answer_of, probabilities
from mmserve.server.systemone.usage import usage_of

__all__ = ["systemone"]


@dataclass(frozen=True, slots=True)
class _Scored:
    """One question's prompt, and a draft for the prompt and each of its options."""

    report: PromptReport
    drafts: list[Draft]


async def systemone(service: Service, http: HttpRequest) -> Response:
    """Answer typed questions about one state. Raises what `server.errors` maps to a status."""
    body = await service.read_body(http)
    find = service.file_finder(http)
    caller, model = service.caller(http), service.client.model
    call = await asyncio.to_thread(systemone_call, body, caller, model, find)
    name = shown_id(http, call.rid, "sysone-")
    opened: list[OpenCall] = []
    with ExitStack() as ends:
        _hold(service, caller, call, ends)
        try:
            first = _open(service, call.requests[0], name, opened)
            scored = await unless_gone(http, first, _scores(service, call, name, opened))
        finally:
            for one in opened:
                one.close()
    answer = await asyncio.to_thread(_answer, call, scored)
    told = {"id": name, "object": "systemone", "created": now_s(), "model": model.name}
    return JSONResponse(told | answer, headers={ID_HEADER: name})


def _hold(service: Service, caller: Caller, call: SystemOneCall, ends: ExitStack) -> None:
    """Have what is fetched kept for all questions. Changes: `ends` lets it go."""
    salt = scoped_salt(caller, call.requests[0].cache_salt)
    for part in call.distant_media:
        ends.callback(service.client.hold(part, cache_salt=salt))


def _open(service: Service, request: Request, name: str, opened: list[OpenCall]) -> OpenCall:
    """Hand one question in. Changes: the open calls, `opened`."""
    opened.append(service.calls.open([request], [name]))
    return opened[-1]


async def _scores(
    service: Service, call: SystemOneCall, name: str, opened: list[OpenCall]
) -> list[_Scored]:
    """What the engine says of each question, the first of which is open.

    Where the state comes over the network, the others follow once the first is accepted: they
    find its bytes, and if it is refused they are not even asked. Changes: `opened`.
    """
    if call.distant_media:
        await _accepted(opened[0], 0, call.questions[0].kind)
    for request in call.requests[1:]:
        _open(service, request, name, opened)
    for position, (one, question) in enumerate(zip(opened, call.questions, strict=True)):
        await _accepted(one, position, question.kind)
    return [_Scored(one.reports[0], await collect(one)) for one in opened]


async def _accepted(opened: OpenCall, position: int, kind: str) -> None:
    """Wait until a question is accepted. Raises its refusal, by the question's name."""
    if opened.reports:
        return
    try:
        await opened.accepted()
    except (BadRequest, ContextTooLong) as error:
        raise _named(error, f"questions[{position}]", kind) from None


def _named(error: MmserveError, place: str, kind: str) -> MmserveError:
    """A refusal that says which question it is about, if it is about one."""
    if isinstance(error, ContextTooLong):
        fields = {**error.fields, "field": place}
    elif error.param == "options":
        options = "labels" if kind == "score" else "choices"
        fields = {**error.fields, "field": f"{place}.{options}"}
    else:
        return error
    return type(error)(f"{fields['field']}: {error.message}", hint=error.hint, **fields)


def _answer(call: SystemOneCall, scored: Sequence[_Scored]) -> dict[str, Any]:
    """Answers, usage and extras; raises Aborted if a question was aborted."""
    answers = []
    for question, one in zip(call.questions, scored, strict=True):
        options = one.drafts[1:]
        if any(draft.prompt_logprobs is None for draft in options):
            raise Aborted("the call was aborted")
        logprobs = [
            sum(entry.logprob or 0.0 for entry in draft.prompt_logprobs or ())
            for draft in options
        ]
        shares = probabilities(logprobs, one.report.options)
        answers.append(answer_of(question, shares))
    reports = [one.report for one in scored]
    drafts = [draft for one in scored for draft in one.drafts]
    told: dict[str, Any] = {"answers": answers, "usage": usage_of(reports, drafts)}
    extras = extras_object(drafts, reports[:1], with_timing=call.return_timing)
    return told | ({"mmserve": extras} if extras else {})
