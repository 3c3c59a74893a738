"""`/v1/messages` and `/v1/messages/count_tokens`: answers whole or as events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import ConstraintRefused, Output
from mmserve.server.answer import ask, prompt_ids
from mmserve.server.anthropic.answers import BlockWriter, content_of, stop_fields, usage_fields
from mmserve.server.anthropic.request import MessagesCall, count_request, messages_call
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft, extras_object
from mmserve.server.errors import anthropic_error
from mmserve.server.events import named_event
from mmserve.server.service import Service, shown_id

__all__ = ["count_tokens", "messages"]


@dataclass(frozen=True, slots=True)
class _Form:
    """What all parts of an answer share."""

    shown_id: str
    model: str
    call: MessagesCall
    opened: OpenCall

    def message(self, draft: Draft, content: list[dict[str, Any]]) -> dict[str, Any]:
        """The message object, without its end. Pure."""
        message: dict[str, Any] = {
            "id": self.shown_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage_fields(draft.usage),
        }
        if self.call.envelope.return_token_ids:
            message["prompt_token_ids"] = list(self.opened.reports[0].token_ids)
        return message

    def extras(self, draft: Draft) -> dict[str, Any]:
        """What mmserve tells beside the answer, once it has ended. Pure."""
        envelope = self.call.envelope
        told: dict[str, Any] = {}
        if envelope.return_token_ids:
            told["token_ids"] = draft.token_ids
        extras = extras_object([draft], self.opened.reports, with_timing=envelope.return_timing)
        return told | ({"mmserve": extras} if extras else {})


async def messages(service: Service, http: HttpRequest) -> Response:
    """Answer one conversation. Raises what `server.errors` maps to a status."""
    body = await service.read_body(http)
    model = service.client.model
    call = messages_call(body, service.caller(http), model, service.file_finder(http))
    name = shown_id(http, call.envelope.rid, "msg_")
    opened = service.calls.open([call.request], [name])
    form = _Form(name, model.name, call, opened)
    try:
        return await ask(
            http,
            opened,
            whole=lambda drafts: JSONResponse(_whole(form, drafts[0])),
            events=(lambda news: _events(form, news)) if call.envelope.is_stream else None,
            shown_id=name,
            tell=lambda error: named_event(anthropic_error(error)),
        )
    except ConstraintRefused as error:
        raise await asyncio.to_thread(call.refusal, error) from None


async def count_tokens(service: Service, http: HttpRequest) -> Response:
    """How many tokens a prompt has; its media are read as far as their size."""
    body = await service.read_body(http)
    find = service.file_finder(http)
    request = count_request(body, service.caller(http), service.client.model, find)
    ids = await prompt_ids(service, http, request)
    return JSONResponse({"input_tokens": len(ids)})


def _whole(form: _Form, draft: Draft) -> dict[str, Any]:
    reader, writer = form.call.tools.reader(), BlockWriter()
    events = [*writer.take([*reader.add(draft.text), *reader.end()]), *writer.end()]
    message = form.message(draft, content_of(events))
    message |= stop_fields(draft.finish, reader, has_calls=writer.has_calls)
    return message | form.extras(draft)


async def _events(form: _Form, news: AsyncIterator[tuple[int, Output]]) -> AsyncIterator[str]:
    reader, writer, draft = form.call.tools.reader(), BlockWriter(), Draft()
    has_begun = False
    async for _, output in news:
        draft.add(output)
        if not has_begun:
            has_begun = True
            yield named_event({"type": "message_start", "message": form.message(draft, [])})
        deltas = reader.add(output.text)
        if output.finish is not None:
            deltas += reader.end()
        for event in writer.take(deltas):
            yield named_event(event)
    for event in writer.end():
        yield named_event(event)
    stop = stop_fields(draft.finish, reader, has_calls=writer.has_calls)
    usage = usage_fields(draft.usage)
    end = {"type": "message_delta", "delta": stop, "usage": usage, **form.extras(draft)}
    yield named_event(end)
    yield named_event({"type": "message_stop"})
