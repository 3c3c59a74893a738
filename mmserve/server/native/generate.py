"""The native `/generate`: cumulative or whole answers, batches and samples as flat lists."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import Client, Finish, Output, TokenLogprob
from mmserve.server.answer import ask
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft, extras_object
from mmserve.server.events import DONE, event
from mmserve.server.native.choices import score_choices
from mmserve.server.native.request import NativeCall, Scores, native_call
from mmserve.server.service import ID_HEADER, Service, shown_id
from mmserve.server.values import finite, piece_text

__all__ = ["generate"]


@dataclass(frozen=True, slots=True)
class _Form:
    """What all answers of a call need; `names` holds the shown id of each sequence."""

    call: NativeCall
    opened: OpenCall
    names: tuple[str, ...]
    started_s: float

    @property
    def is_list(self) -> bool:
        """Whether the answer is a list. Pure."""
        return self.call.is_batch or self.call.num_samples > 1


async def generate(service: Service, http: HttpRequest) -> Response:
    """Answer one prompt or a batch. Raises what `server.errors` maps to a status."""
    started_s = time.monotonic()
    body = await service.read_body(http)
    client, caller, find_file = service.client, service.caller(http), service.file_finder(http)
    # base64 takes 9 ms a MB on one core of a busy 2-core machine: not on the event loop
    call = await asyncio.to_thread(
        lambda: native_call(body, caller, client.model, _own_spelling(client), find_file)
    )
    given = call.rids if isinstance(call.rids, str) else None
    name = shown_id(http, given)
    names = _names(call, name)
    opened = service.calls.open(call.requests, {name, *names, *_listed(call)})
    form = _Form(call, opened, names, started_s)
    if call.choices is not None:
        scores = await score_choices(http, call, opened)
        answer = _answer(form, 0, scores.base, scores.base)
        answer["meta_info"]["choices"] = scores.choices
        return JSONResponse(answer, headers={ID_HEADER: name})
    return await ask(
        http,
        opened,
        whole=lambda drafts: JSONResponse(_whole(form, drafts)),
        events=(lambda news: _events(form, news)) if call.is_stream else None,
        shown_id=name,
        done_after_error=True,
    )


def _own_spelling(client: Client) -> str:
    """How the model spells a picture's place in its own templates; "" if it sees none."""
    token_id = client.model.image_token_id
    if token_id is None:
        return ""
    return client.detokenize([token_id], skip_special_tokens=False)


def _listed(call: NativeCall) -> tuple[str, ...]:
    return call.rids if isinstance(call.rids, tuple) else ()


def _names(call: NativeCall, name: str) -> tuple[str, ...]:
    """The id of each sequence: `_0`, `_1` ... are added where one id stands for several."""
    n = call.num_samples
    given = _listed(call)
    if given:
        return tuple(f"{rid}_{k}" if n > 1 else rid for rid in given for k in range(n))
    num_sequences = len(call.requests) * n
    if not call.is_batch and num_sequences == 1:
        return (name,)
    return tuple(f"{name}_{k}" for k in range(num_sequences))


def _whole(form: _Form, drafts: list[Draft]) -> list[dict[str, Any]] | dict[str, Any]:
    answers = [_answer(form, number, draft, draft) for number, draft in enumerate(drafts)]
    return answers if form.is_list else answers[0]


async def _events(form: _Form, news: AsyncIterator[tuple[int, Output]]) -> AsyncIterator[str]:
    drafts = [Draft() for _ in range(form.opened.num_sequences)]
    async for number, output in news:
        whole = drafts[number]
        whole.add(output)
        part = whole
        if form.call.is_incremental:
            part = Draft()
            part.add(output)
        answer = _answer(form, number, part, whole)
        if form.is_list:
            answer["index"] = number
        yield event(answer)
    yield DONE


def _answer(form: _Form, number: int, part: Draft, whole: Draft) -> dict[str, Any]:
    """What `part` says, with the counts of the `whole` answer so far."""
    usage, position = whole.usage, number // form.call.num_samples
    meta: dict[str, Any] = {
        "id": form.names[number],
        "finish_reason": _finish(whole.finish, len(whole.token_ids)),
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "forced_tokens": usage.forced_tokens,
        "cached_tokens": usage.cached_tokens,
        "image_tokens": usage.image_tokens,
        "video_tokens": usage.video_tokens,
        "cached_tokens_details": {
            "text": usage.cached_text_tokens,
            "image": usage.cached_image_tokens,
            "video": usage.cached_video_tokens,
        },
        "num_retractions": usage.num_retractions,
        "e2e_latency": round(time.monotonic() - form.started_s, 6),
    }
    if whole.finish is not None:
        reports = form.opened.reports[position : position + 1]
        meta |= extras_object([whole], reports, with_timing=True)
    if form.call.return_token_ids:
        meta["prompt_token_ids"] = list(form.opened.reports[position].token_ids)
    scores = form.call.scores[position]
    if scores.is_wanted:
        meta |= _logprobs(scores, part, with_text=form.call.with_text)
    return {"text": part.text, "output_ids": part.token_ids, "meta_info": meta}


def _finish(finish: Finish | None, num_tokens: int) -> dict[str, Any] | None:
    if finish is None:
        return None
    if finish.reason == "length":
        return {"type": "length", "length": num_tokens}
    if finish.reason == "abort":
        return {"type": "abort", "message": "the call was aborted"}
    return {"type": finish.reason, "matched": finish.matched}


def _logprobs(scores: Scores, draft: Draft, *, with_text: bool) -> dict[str, Any]:
    given: Sequence[TokenLogprob] = draft.prompt_logprobs or ()
    if scores.is_scoring and scores.start > 0:
        given = given[1:]
    found: dict[str, Any] = {
        "input_token_logprobs": [_entry(entry, with_text=with_text) for entry in given],
        "output_token_logprobs": [_entry(e, with_text=with_text) for e in draft.logprobs],
        "output_token_logprobs_length": len(draft.logprobs),
        "output_token_forced": [entry.is_forced for entry in draft.logprobs],
    }
    if scores.top:
        found["input_top_logprobs"] = [_tops(entry, with_text=with_text) for entry in given]
        found["output_top_logprobs"] = [_tops(e, with_text=with_text) for e in draft.logprobs]
    return found


def _entry(entry: TokenLogprob, *, with_text: bool) -> list[Any]:
    words = piece_text(entry.piece) if with_text else None
    return [finite(entry.logprob), entry.token_id, words]


def _tops(entry: TokenLogprob, *, with_text: bool) -> list[list[Any]] | None:
    if entry.logprob is None:
        return None
    return [
        [finite(logprob), token_id, piece_text(piece) if with_text else None]
        for token_id, logprob, piece in entry.top
    ]
