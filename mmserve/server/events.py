"""Answers that may outlive their client: noticing that it left, and streams of events."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.core import Aborted
from mmserve.server.calls import OpenCall
from mmserve.server.errors import error_object
from mmserve.server.failures import failure_text
from mmserve.server.visit import here

__all__ = ["DONE", "EventStream", "event", "first_of", "named_event", "unless_gone"]

DONE = "data: [DONE]\n\n"
T = TypeVar("T")
_log = logging.getLogger(__name__)


def event(value: dict[str, Any]) -> str:
    """One server-sent event with a JSON value. Pure."""
    words = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"data: {words}\n\n"


def named_event(value: dict[str, Any]) -> str:
    """One event that has its value's `type` for a name, too. Pure."""
    return f"event: {value['type']}\n{event(value)}"


async def unless_gone(http: HttpRequest, call: OpenCall, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; if the client leaves first, the call is aborted and Aborted raised.

    The request's body must have been read before.
    """
    working = asyncio.create_task(work)
    gone = asyncio.create_task(_wait_gone(http.receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise Aborted("the client closed the connection")
    finally:
        if not working.done():
            call.cancel()
        await _stop(working, gone)


async def first_of(items: AsyncIterator[T]) -> AsyncIterator[T]:
    """The same items, after the first one is there. Raises what the first one raises."""
    first = await anext(items)

    async def all_items() -> AsyncIterator[T]:
        yield first
        async for item in items:
            yield item

    return all_items()


class EventStream(Response):
    """Sends events as they come; closes the call when it ends or the client leaves.

    A failure on the way becomes one last event with an error object, then `[DONE]` if
    `done_after_error`. `tell` writes that event, if not in the common form.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[str],
        call: OpenCall,
        *,
        done_after_error: bool = False,
        tell: Callable[[Exception], str] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self._call = call
        self._done_after_error = done_after_error
        self._tell = tell
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI protocol of a response. Changes: the call ends."""
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        pump = asyncio.create_task(self._pump(start, send))
        gone = asyncio.create_task(_wait_gone(receive))
        try:
            await asyncio.wait({pump, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._call.close()
            await _stop(pump, gone)

    async def _pump(self, start: dict[str, Any], send: Send) -> None:
        await send(start)
        async for piece in self._guarded():
            body = {"type": "http.response.body", "body": piece.encode(), "more_body": True}
            await send(body)
            await asyncio.sleep(0)  # a connection that is gone is seen before the next write
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _guarded(self) -> AsyncIterator[str]:
        try:
            async for piece in self._events:
                yield piece
        except Exception as error:  # noqa: BLE001 - the status is sent, an event must say it
            _log.error("a stream failed\n%s", failure_text(error))
            failure, visit = error_object(error), here()
            if visit is not None:
                visit.fail(failure["error"]["code"])
            yield self._tell(error) if self._tell else event(failure)
            if self._done_after_error:
                yield DONE


async def _wait_gone(receive: Receive) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
