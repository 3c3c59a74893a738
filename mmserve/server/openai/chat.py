"""`/v1/chat/completions`: answers whole or as chunks, in OpenAI's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import ConstraintRefused, Finish, Output, TokenLogprob
from mmserve.server.answer import ask, now_s
from mmserve.server.calls import OpenCall
from mmserve.server.chat.request import ChatCall, chat_call
from mmserve.server.chat.tools_calls import AnswerReader, message_of
from mmserve.server.drafts import Draft, extras_object, usage_object
from mmserve.server.events import DONE, event
from mmserve.server.openai.logprobs import token_entries
from mmserve.server.service import Service, shown_id

__all__ = ["chat_completions"]


@dataclass(frozen=True, slots=True)
class _Form:
    """The parts of an answer that all its chunks share."""

    shown_id: str
    created_s: int
    model: str
    call: ChatCall

    def frame(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An answer or chunk with these choices. Pure."""
        return {
            "id": self.shown_id,
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


async def chat_completions(service: Service, http: HttpRequest) -> Response:
    """Answer one conversation. Raises what `server.errors` maps to a status."""
    body = await service.read_body(http)
    model = service.client.model
    chat = chat_call(body, service.caller(http), model, service.file_finder(http))
    form = _Form(shown_id(http, chat.envelope.rid, "chatcmpl-"), now_s(), model.name, chat)
    opened = service.calls.open([chat.request], [form.shown_id])
    try:
        return await ask(
            http,
            opened,
            whole=lambda drafts: JSONResponse(_whole(form, opened, drafts)),
            events=(lambda news: _chunks(form, opened, news))
            if chat.envelope.is_stream
            else None,
            shown_id=form.shown_id,
        )
    except ConstraintRefused as error:
        raise await asyncio.to_thread(chat.refusal, error) from None


def _whole(form: _Form, opened: OpenCall, drafts: list[Draft]) -> dict[str, Any]:
    envelope = form.call.envelope
    choices = []
    for index, draft in enumerate(drafts):
        reader = form.call.tools.reader()
        deltas = [*reader.add(draft.text), *reader.end()]
        choice: dict[str, Any] = {
            "index": index,
            "message": message_of(deltas, is_text=not reader.has_calls),
            "logprobs": _logprobs(form, draft.logprobs),
            **_ending(reader, draft.finish),
        }
        if envelope.return_token_ids:
            choice["token_ids"] = draft.token_ids
        choices.append(choice)
    answer = form.frame("chat.completion", choices)
    answer["usage"] = usage_object(drafts, opened.num_samples)
    if envelope.return_token_ids:
        answer["prompt_token_ids"] = list(opened.reports[0].token_ids)
    return _with_extras(form, opened, drafts, answer)


async def _chunks(
    form: _Form, opened: OpenCall, news: AsyncIterator[tuple[int, Output]]
) -> AsyncIterator[str]:
    drafts = [Draft() for _ in range(opened.num_sequences)]
    readers = [form.call.tools.reader() for _ in drafts]
    begun: set[int] = set()
    num_open = len(drafts)
    async for index, output in news:
        drafts[index].add(output)
        reader = readers[index]
        if index not in begun:
            begun.add(index)
            chunk = _first_chunk(form, opened, index, reader, is_first=len(begun) == 1)
            yield event(_with_usage(form, opened, drafts, chunk))
        for chunk in _news_chunks(form, index, output, reader):
            yield event(_with_usage(form, opened, drafts, chunk))
        if output.finish is not None:
            num_open -= 1
            chunk = _chunk(form, index, {}, **_ending(reader, output.finish))
            if not num_open and not form.call.envelope.include_usage:
                _with_extras(form, opened, drafts, chunk)
            yield event(_with_usage(form, opened, drafts, chunk))
    if form.call.envelope.include_usage:
        last = form.frame("chat.completion.chunk", [])
        last["usage"] = usage_object(drafts, opened.num_samples)
        yield event(_with_extras(form, opened, drafts, last))
    yield DONE


def _with_usage(
    form: _Form, opened: OpenCall, drafts: list[Draft], chunk: dict[str, Any]
) -> dict[str, Any]:
    """A chunk with the usage so far, if each is to have it."""
    if form.call.envelope.usage_in_all:
        chunk["usage"] = usage_object(drafts, opened.num_samples)
    return chunk


def _chunk(form: _Form, index: int, delta: dict[str, Any], **choice: object) -> dict[str, Any]:
    whole_choice = {
        "index": index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": None,
        **choice,
    }
    chunk = form.frame("chat.completion.chunk", [whole_choice])
    if form.call.envelope.include_usage:
        chunk["usage"] = None
    return chunk


def _first_chunk(
    form: _Form, opened: OpenCall, index: int, reader: AnswerReader, *, is_first: bool
) -> dict[str, Any]:
    content = None if reader.has_calls else ""
    chunk = _chunk(form, index, {"role": "assistant", "content": content})
    if is_first and form.call.envelope.return_token_ids:
        chunk["prompt_token_ids"] = list(opened.reports[0].token_ids)
    return chunk


def _news_chunks(
    form: _Form, index: int, output: Output, reader: AnswerReader
) -> Iterator[dict[str, Any]]:
    """Chunks of one news but its end; the first has its log-probabilities and ids."""
    deltas = reader.add(output.text)
    if output.finish is not None:
        deltas += reader.end()
    if not deltas and _reports(form, output):
        deltas = [{} if reader.has_calls else {"content": ""}]
    for number, delta in enumerate(deltas):
        chunk = _chunk(form, index, delta)
        choice = chunk["choices"][0]
        choice["logprobs"] = _logprobs(form, () if number else output.logprobs)
        if form.call.envelope.return_token_ids:
            choice["token_ids"] = [] if number else list(output.token_ids)
        yield chunk


def _reports(form: _Form, output: Output) -> bool:
    """Whether news without text must still be told: log-probabilities or ids were asked for."""
    has_ids = form.call.envelope.return_token_ids and output.token_ids
    return bool(has_ids or (form.call.request.sampling.return_logprobs and output.logprobs))


def _with_extras(
    form: _Form, opened: OpenCall, drafts: list[Draft], answer: dict[str, Any]
) -> dict[str, Any]:
    with_timing = form.call.envelope.return_timing
    extras = extras_object(drafts, opened.reports, with_timing=with_timing)
    if extras:
        answer["mmserve"] = extras
    return answer


def _ending(reader: AnswerReader, finish: Finish | None) -> dict[str, Any]:
    if finish is None:
        return {"finish_reason": None, "matched_stop": None}
    return {"finish_reason": reader.reason(finish), "matched_stop": finish.matched}


def _logprobs(
    form: _Form, entries: list[TokenLogprob] | tuple[TokenLogprob, ...]
) -> dict[str, Any] | None:
    if not form.call.request.sampling.return_logprobs:
        return None
    return {"content": token_entries(entries), "refusal": None}
