"""Routes that change or help: flushing the cache, aborting calls, token ids and back."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import PlainTextResponse, Response

from mmserve.core import BadRequest
from mmserve.server.answer import prompt_ids
from mmserve.server.calls import MOST_ANSWERS
from mmserve.server.chat.request import chat_call
from mmserve.server.fields import Body, anything, boolean, integers, list_of, shown, text
from mmserve.server.service import Service, check_model

__all__ = ["abort_request", "concatenate", "detokenize", "flush_cache", "tokenize"]

_MAX_FLUSH_WAIT_S = 600.0
_FLUSH_POLL_S = 0.05


async def flush_cache(service: Service, http: HttpRequest) -> Response:
    """Forget cached KV and features; waits `timeout` seconds for running requests to end."""
    timeout_s = _timeout(http.query_params.get("timeout"))
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(service.client.flush_cache):
        if time.monotonic() >= deadline:
            message = f"requests still run after {timeout_s:g} s, the cache is not flushed"
            raise BadRequest(message, reason="running", hint="give a timeout in seconds")
        await asyncio.sleep(_FLUSH_POLL_S)
    return PlainTextResponse("The cache is flushed.\n")


async def abort_request(service: Service, http: HttpRequest) -> Response:
    """End the caller's calls of one id, or all calls; a call that is not there is no error."""
    body = await service.read_body(http)
    is_all = body.take("abort_all", boolean, default=False)
    rid = body.take("rid", text, "")
    body.neutral("abort_message", allowed=("",))
    body.finish()
    if is_all:
        service.check_admin(http)
        service.calls.abort_all()
    elif rid:
        service.calls.abort(rid, service.caller(http))
    else:
        raise BadRequest("neither rid nor abort_all is given", field="rid", reason="missing")
    return Response(status_code=200)


async def concatenate(service: Service, http: HttpRequest) -> Response:
    """Nothing to do: the client joins texts itself and sends them whole with its next call."""
    body = await service.read_body(http)
    body.need("src_rids", list_of(text))
    body.need("dst_rid", text)
    body.finish()
    return JSONResponse({"mode": "text"})


async def tokenize(service: Service, http: HttpRequest) -> Response:
    """Token ids of template text, of several texts, or of a conversation as it is sent."""
    body = await service.read_body(http)
    max_len = service.client.model.context_length
    if body.has("messages"):
        rows: Any = await _conversation_ids(service, http, body)
        return JSONResponse({"tokens": rows, "count": len(rows), "max_model_len": max_len})
    check_model(body, service.client.model)
    add_special = body.take("add_special_tokens", boolean, default=False)
    value = body.need("prompt", anything)
    body.finish()
    is_list = isinstance(value, list)
    texts = (
        list_of(text, most=MOST_ANSWERS)(value, "prompt")
        if is_list
        else (text(value, "prompt"),)
    )
    rows = await asyncio.to_thread(
        lambda: [
            service.client.tokenize(words, add_special_tokens=add_special) for words in texts
        ]
    )
    counts = [len(row) for row in rows]
    if not is_list:
        rows, counts = rows[0], counts[0]  # type: ignore[assignment]  # one text, one answer
    return JSONResponse({"tokens": rows, "count": counts, "max_model_len": max_len})


async def detokenize(service: Service, http: HttpRequest) -> Response:
    """Text of token ids; a list of lists gives a list of texts."""
    body = await service.read_body(http)
    check_model(body, service.client.model)
    skip = body.take("skip_special_tokens", boolean, default=True)
    value = body.need("tokens", anything)
    body.finish()
    ids = integers(0, service.client.model.vocab_size - 1)
    is_nested = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    rows = (
        list_of(ids, most=MOST_ANSWERS)(value, "tokens")
        if is_nested
        else (ids(value, "tokens"),)
    )
    texts = await asyncio.to_thread(
        lambda: [service.client.detokenize(row, skip_special_tokens=skip) for row in rows]
    )
    return JSONResponse({"text": texts if is_nested else texts[0]})


async def _conversation_ids(service: Service, http: HttpRequest, body: Body) -> list[int]:
    """The rendered prompt of a chat body; media are read as far as their size."""
    body.neutral("add_special_tokens", allowed=(False,))
    find = service.file_finder(http)
    chat = chat_call(body, service.caller(http), service.client.model, find)
    return await prompt_ids(service, http, chat.request)


def _timeout(words: str | None) -> float:
    try:
        timeout_s = float(words or 0)
    except ValueError:
        timeout_s = math.nan
    if not 0 <= timeout_s <= _MAX_FLUSH_WAIT_S:
        message = f"timeout is {shown(words)}, allowed is 0 to {_MAX_FLUSH_WAIT_S:g} seconds"
        raise BadRequest(message, field="timeout", reason="value")
    return timeout_s
