"""A small server that speaks Anthropic's Messages API, answers by a rule, and remembers.

It refuses what the real one refuses: unknown fields, stops of white space only, blocks of white
space, white space at the end of a turn to continue, `temperature` above 1, and, for models that
end in "-new", a last turn of the assistant.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

__all__ = ["AnthropicSite", "Reply", "anthropic_site", "said"]

_FIELDS = {"model", "messages", "max_tokens", "system", "stop_sequences", "stream"}
_SAMPLING = {"temperature", "top_p", "top_k"}
_USAGE = {"input_tokens": 11, "cache_creation_input_tokens": 5, "cache_read_input_tokens": 7}


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in pieces, and how it ends; `fails_after` pieces the stream tells an error.

    `is_cut` ends the stream without an end; `is_endless` repeats the pieces for ever.
    """

    pieces: tuple[str, ...]
    stop_reason: str = "end_turn"
    fails_after: int | None = None
    is_cut: bool = False
    is_endless: bool = False


@dataclass
class AnthropicSite:
    """What was asked, and how it is answered; `problem` fails the next request."""

    rule: Callable[[dict[str, Any]], Reply | str]
    url: str = ""
    problem: tuple[int, str] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    has_left: threading.Event = field(default_factory=threading.Event)

    async def answer(self, http: Request) -> Response:
        """POST /v1/messages."""
        body = await http.json()
        self.requests.append(body)
        if self.problem is not None:
            (status, kind), self.problem = self.problem, None
            return _error(status, kind, "as the test wants")
        if "BOOM" in json.dumps(body):
            return _error(500, "api_error", "it broke")
        if (problem := _problem(body)) is not None:
            return _error(400, "invalid_request_error", problem)
        reply = self.rule(body)
        reply = Reply(tuple(reply)) if isinstance(reply, str) else reply
        return _Stream(_told(body, reply), self.has_left)


@contextmanager
def anthropic_site(
    rule: Callable[[dict[str, Any]], Reply | str],
) -> Iterator[AnthropicSite]:
    """The server on a free port of loopback."""
    site = AnthropicSite(rule)
    app = Starlette(routes=[Route("/v1/messages", site.answer, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0))
    settings = uvicorn.Config(app, log_level="warning", lifespan="off")
    server = uvicorn.Server(settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.002)
    site.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield site
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


class _Stream(StreamingResponse):
    """Events that say when the caller has them all, or has left."""

    def __init__(self, events: Iterator[dict[str, Any]], has_left: threading.Event) -> None:
        super().__init__(_bytes(events), media_type="text/event-stream")
        self._has_left = has_left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._has_left.set()


async def _bytes(events: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        await asyncio.sleep(0)


def said(message: dict[str, Any]) -> list[str]:
    """A message's parts: its texts, and pictures as their data or address."""
    return [
        block["text"]
        if block["type"] == "text"
        else block["source"].get("data") or block["source"]["url"]
        for block in message["content"]
    ]


def _problem(body: dict[str, Any]) -> str | None:
    unknown = set(body) - _FIELDS - _SAMPLING
    messages = body["messages"]
    blocks = [block for message in messages for block in message["content"]]
    last = messages[-1]
    problems = {
        f"unknown fields {sorted(unknown)}": bool(unknown),
        "max_tokens: at least 1": body.get("max_tokens", 0) < 1,
        "temperature: at most 1": body.get("temperature", 0) > 1,
        "stop_sequences: each must have more than white space": not all(
            stop.strip() for stop in body.get("stop_sequences", ())
        ),
        "text must not be white space": any(
            block["type"] == "text" and not block["text"].strip() for block in blocks
        ),
        "the last turn must not end in white space": last["role"] == "assistant"
        and last["content"][-1]["text"] != last["content"][-1]["text"].rstrip(),
        "this model continues no turn": last["role"] == "assistant"
        and body["model"].endswith("-new"),
    }
    return next((problem for problem, is_so in problems.items() if is_so), None)


def _told(body: dict[str, Any], reply: Reply) -> Iterator[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    message |= {"model": body["model"], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": message | {"usage": _counts(1)}}
    block = {"type": "text", "text": ""}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "ping"}
    number, text, reason, matched = 0, "", reply.stop_reason, None
    while True:
        for piece in reply.pieces:
            if number == reply.fails_after:
                error = {"type": "overloaded_error", "message": "too much"}
                yield {"type": "error", "error": error}
                return
            number += 1
            text += piece
            matched = next((s for s in body.get("stop_sequences", ()) if s in text), None)
            kept = piece if matched is None else ""
            delta = {"type": "text_delta", "text": kept}
            yield {"type": "content_block_delta", "index": 0, "delta": delta}
            if matched is not None or number == body["max_tokens"]:
                reason = "max_tokens" if matched is None else "stop_sequence"
                break
        else:
            if reply.is_endless:
                continue
        break
    if reply.is_cut:
        return
    yield {"type": "content_block_stop", "index": 0}
    delta = {"stop_reason": reason, "stop_sequence": matched}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": number}}
    yield {"type": "message_stop"}


def _counts(num_tokens: int) -> dict[str, int]:
    return {**_USAGE, "output_tokens": num_tokens}


def _error(status: int, kind: str, message: str) -> Response:
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return JSONResponse(error, status)
