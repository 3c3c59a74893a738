"""`POST /v1/responses`: answers whole or as events, in the form of OpenAI's newer API."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import BadRequest, ConstraintRefused, Output, TextPart, ToolCall, Turn
from mmserve.server.answer import ask, now_s
from mmserve.server.calls import OpenCall
from mmserve.server.chat.messages import call_arguments
from mmserve.server.clients import Caller
from mmserve.server.conversation_store import Conversation
from mmserve.server.drafts import Draft, extras_object
from mmserve.server.events import event
from mmserve.server.openai.responses_items import new_id
from mmserve.server.openai.responses_object import ResponseForm, error_event
from mmserve.server.openai.responses_output import OutputWriter
from mmserve.server.openai.responses_request import ResponsesCall, Sender, responses_call
from mmserve.server.service import ID_HEADER, Service, shown_id

__all__ = ["create"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a whole answer and one in events have in common."""

    service: Service
    caller: Caller
    call: ResponsesCall
    form: ResponseForm
    opened: OpenCall

    def writer(self) -> OutputWriter:
        """For the one sequence there is. Pure."""
        chat = self.call.chat
        has_logprobs = chat.request.sampling.return_logprobs
        return OutputWriter(chat.tools.reader(), has_logprobs=has_logprobs)

    def ended(self, draft: Draft, items: list[dict[str, Any]]) -> dict[str, Any]:
        """The response that is done. Changes: it is kept, if it is to be, and says so."""
        body = self.form.ended(draft, items, self._extras(draft))
        if self.form.is_kept:
            said = self.call.said
            turns = (*said.turns, _turn_of(items))
            whole = Conversation.new(said.before, turns, said.said, tuple(items))
            if not self.service.conversations.add(self.caller, body, whole):
                body = {**body, "store": False}
        return body

    def _extras(self, draft: Draft) -> dict[str, Any]:
        envelope, reports = self.call.chat.envelope, self.opened.reports
        ids: dict[str, Any] = {}
        if envelope.return_token_ids:
            ids = {"token_ids": draft.token_ids, "prompt_token_ids": list(reports[0].token_ids)}
        extras = extras_object([draft], reports, with_timing=envelope.return_timing)
        return {**ids, "mmserve": extras} if extras else ids


async def create(service: Service, http: HttpRequest) -> Response:
    """Answer an input, perhaps behind an earlier response."""
    body = await service.read_body(http)
    caller, store = service.caller(http), service.conversations
    sender = Sender(
        caller,
        lambda response_id, name: store.find(caller, response_id, name).conversation,
        lambda item_id, name: store.find_item(caller, item_id, name),
        service.file_finder(http),
    )
    model = service.client.model
    call = responses_call(body, sender, model)
    response_id, rid = new_id("resp"), call.chat.envelope.rid
    shown = shown_id(http, rid) if rid or ID_HEADER in http.headers else response_id
    form = ResponseForm(response_id, now_s(), model.name, call.echo, _is_kept(service, call))
    opened = service.calls.open([call.chat.request], [response_id, shown])
    answer = _Answer(service, caller, call, form, opened)
    try:
        return await ask(
            http,
            opened,
            whole=lambda drafts: JSONResponse(_whole(answer, drafts[0])),
            events=(lambda news: _events(answer, news))
            if call.chat.envelope.is_stream
            else None,
            shown_id=shown,
        )
    except ConstraintRefused as error:
        raise await asyncio.to_thread(call.chat.refusal, error) from None


def _is_kept(service: Service, call: ResponsesCall) -> bool:
    """Whether the response is to be kept; raises BadRequest if it must be and cannot."""
    num_bytes, limit = call.said.total_bytes, service.conversations.max_bytes
    if call.store and num_bytes > limit:
        message = (
            f"store is true, the conversation has {num_bytes} bytes, and this server keeps"
            f" {limit} of all responses"
        )
        hint = "send store: false, or start the server with --response-store-bytes"
        raise BadRequest(message, field="store", reason="too_large", hint=hint)
    return call.store is not False and num_bytes <= limit


def _whole(answer: _Answer, draft: Draft) -> dict[str, Any]:
    writer = answer.writer()
    writer.add(draft.text, draft.logprobs)
    writer.end(draft.finish)
    return answer.ended(draft, writer.items)


async def _events(
    answer: _Answer, news: AsyncIterator[tuple[int, Output]]
) -> AsyncIterator[str]:
    number = 0
    async for value in _values(answer, news):
        yield f"event: {value['type']}\n{event({**value, 'sequence_number': number})}"
        number += 1


async def _values(
    answer: _Answer, news: AsyncIterator[tuple[int, Output]]
) -> AsyncIterator[dict[str, Any]]:
    draft, writer = Draft(), answer.writer()
    for kind in ("created", "in_progress"):
        yield {"type": f"response.{kind}", "response": answer.form.begun()}
    try:
        async for _, output in news:
            draft.add(output)
            for value in writer.add(output.text, output.logprobs):
                yield value
    except Exception as error:  # noqa: BLE001 - the status is sent, events must say it
        _log.error("a stream failed: %.500s", error)
        yield error_event(error)
        failed = answer.form.failed(error, writer.items)
        yield {"type": "response.failed", "response": failed}
        return
    for value in writer.end(draft.finish):
        yield value
    body = answer.ended(draft, writer.items)
    yield {"type": f"response.{body['status']}", "response": body}


def _turn_of(items: Sequence[dict[str, Any]]) -> Turn:
    """The answer as the model is shown it later; calls that were cut off are left out."""
    parts: list[TextPart] = []
    calls: list[ToolCall] = []
    for item in items:
        if item["type"] == "message":
            words = "".join(part["text"] for part in item["content"])
            parts += [TextPart(words)] if words else []
        elif _is_whole(item["arguments"]):
            calls.append(ToolCall(item["call_id"], item["name"], item["arguments"]))
    return Turn("assistant", tuple(parts), tool_calls=tuple(calls))


def _is_whole(arguments: str) -> bool:
    try:
        call_arguments(arguments, "arguments")
    except BadRequest:
        return False
    return True
