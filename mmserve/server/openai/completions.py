"""`/v1/completions`: answers whole or as chunks, in OpenAI's older form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import Client, ConstraintRefused, Output, RawPart, TokenLogprob
from mmserve.server.answer import ask, now_s
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft, extras_object, usage_object
from mmserve.server.events import DONE, event
from mmserve.server.openai.completions_request import CompletionsCall, completions_call
from mmserve.server.service import Service, shown_id
from mmserve.server.values import finite, piece_text

__all__ = ["completions"]


@dataclass(frozen=True, slots=True)
class _Form:
    """What all choices and chunks of an answer need."""

    shown_id: str
    created_s: int
    service: Service
    call: CompletionsCall
    opened: OpenCall
    echoes: tuple[str, ...]

    def frame(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """An answer or chunk with these choices. Pure."""
        return {
            "id": self.shown_id,
            "object": "text_completion",
            "created": self.created_s,
            "model": self.service.client.model.name,
            "choices": choices,
        }

    def prompt_text(self, index: int) -> str:
        """The prompt of choice `index` as text, for a call that wants it. Pure."""
        return self.echoes[index // self.opened.num_samples]

    def with_extras(self, drafts: Sequence[Draft], answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with what `mmserve` adds. Changes: `answer`."""
        with_timing = self.call.envelope.return_timing
        extras = extras_object(drafts, self.opened.reports, with_timing=with_timing)
        return answer | ({"mmserve": extras} if extras else {})


async def completions(service: Service, http: HttpRequest) -> Response:
    """Complete one or several prompts. Raises what `server.errors` maps to a status."""
    body = await service.read_body(http)
    call = completions_call(body, service.caller(http), service.client.model)
    name = shown_id(http, call.envelope.rid, "cmpl-")
    echoes: tuple[str, ...] = ()
    if call.is_echo:  # the engine may be in another process: not on the event loop
        echoes = await asyncio.to_thread(_prompt_texts, service.client, call)
    opened = service.calls.open(call.requests(), [name])
    form = _Form(name, now_s(), service, call, opened, echoes)
    try:
        return await ask(
            http,
            opened,
            whole=lambda drafts: JSONResponse(_whole(form, drafts)),
            events=(lambda news: _chunks(form, news)) if call.envelope.is_stream else None,
            shown_id=name,
        )
    except ConstraintRefused as error:
        raise (error if call.form is None else call.form.refusal(error)) from None


def _prompt_texts(client: Client, call: CompletionsCall) -> tuple[str, ...]:
    """The prompts as text, in order. Pure."""
    return tuple(
        prompt.text
        if isinstance(prompt, RawPart)
        else client.detokenize(prompt.token_ids, skip_special_tokens=False)
        for prompt in call.prompts
    )


def _whole(form: _Form, drafts: list[Draft]) -> dict[str, Any]:
    choices = []
    for index, draft in enumerate(drafts):
        echo = form.prompt_text(index) if form.call.is_echo else ""
        table = _Table()
        table.add(draft.prompt_logprobs or (), form)
        table.add(draft.logprobs, form)
        choice = _choice(form, index, echo + draft.text, table)
        if draft.finish is not None:
            choice["finish_reason"] = draft.finish.reason
            choice["matched_stop"] = draft.finish.matched
        if form.call.envelope.return_token_ids:
            choice["token_ids"] = draft.token_ids
            report = form.opened.reports[index // form.opened.num_samples]
            choice["prompt_token_ids"] = list(report.token_ids)
        choices.append(choice)
    answer = form.frame(choices)
    answer["usage"] = usage_object(drafts, form.opened.num_samples)
    return form.with_extras(drafts, answer)


async def _chunks(form: _Form, news: AsyncIterator[tuple[int, Output]]) -> AsyncIterator[str]:
    drafts = [Draft() for _ in range(form.opened.num_sequences)]
    tables = [_Table() for _ in drafts]
    begun: set[int] = set()
    num_open = len(drafts)
    async for index, output in news:
        drafts[index].add(output)
        chunk = _chunk(form, index, output, tables[index], is_first=index not in begun)
        begun.add(index)
        num_open -= output.finish is not None
        if not num_open and not form.call.envelope.include_usage:
            chunk = form.with_extras(drafts, chunk)
        if form.call.envelope.usage_in_all:
            chunk["usage"] = usage_object(drafts, form.opened.num_samples)
        if chunk["choices"][0]["text"] or output.finish is not None or _is_told(form, output):
            yield event(chunk)
    if form.call.envelope.include_usage:
        last = form.frame([])
        last["usage"] = usage_object(drafts, form.opened.num_samples)
        yield event(form.with_extras(drafts, last))
    yield DONE


def _chunk(
    form: _Form, index: int, output: Output, table: _Table, *, is_first: bool
) -> dict[str, Any]:
    echo = form.prompt_text(index) if is_first and form.call.is_echo else ""
    table.clear()
    table.add(output.prompt_logprobs or (), form)
    table.add(output.logprobs, form)
    choice = _choice(form, index, echo + output.text, table)
    if output.finish is not None:
        choice["finish_reason"] = output.finish.reason
        choice["matched_stop"] = output.finish.matched
    if form.call.envelope.return_token_ids:
        choice["token_ids"] = list(output.token_ids)
        if is_first:
            report = form.opened.reports[index // form.opened.num_samples]
            choice["prompt_token_ids"] = list(report.token_ids)
    chunk = form.frame([choice])
    if form.call.envelope.include_usage:
        chunk["usage"] = None
    return chunk


def _is_told(form: _Form, output: Output) -> bool:
    """Whether news without text must still be sent: log-probabilities or ids were asked for."""
    wants = form.call.envelope.return_token_ids or form.call.sampling.return_logprobs
    return wants and bool(output.token_ids)


def _choice(form: _Form, index: int, text: str, table: _Table) -> dict[str, Any]:
    has_logprobs = form.call.sampling.return_logprobs
    return {
        "index": index,
        "text": text,
        "logprobs": table.columns() if has_logprobs else None,
        "finish_reason": None,
        "matched_stop": None,
    }


class _Table:
    """OpenAI's four columns of log-probabilities, and one that says which tokens were forced.

    Mutable; offsets run on after `clear`.
    """

    def __init__(self) -> None:
        self._offset = 0
        self.clear()

    def clear(self) -> None:
        """Drop the rows, keep the offset. Changes: the rows."""
        self._tokens: list[str] = []
        self._logprobs: list[float | None] = []
        self._tops: list[dict[str, float | None] | None] = []
        self._offsets: list[int] = []
        self._forced: list[bool] = []

    def add(self, entries: Iterable[TokenLogprob], form: _Form) -> None:
        """Append rows. Changes: rows and offset."""
        bos = form.service.client.model.bos_token_id
        for entry in entries:
            word = piece_text(entry.piece)
            self._tokens.append(word)
            self._logprobs.append(finite(entry.logprob))
            top = {piece_text(piece): finite(value) for _, value, piece in entry.top}
            self._tops.append(None if entry.logprob is None else top)
            self._offsets.append(self._offset)
            self._forced.append(entry.is_forced)
            is_unwritten = self._offset == 0 and entry.token_id == bos
            self._offset += 0 if is_unwritten else len(word)

    def columns(self) -> dict[str, Any]:
        """The table as JSON says it. Pure."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._logprobs,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
            **({"forced": self._forced} if any(self._forced) else {}),
        }
