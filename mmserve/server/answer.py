"""The way of every generating request: accepted, then whole or streamed, and always ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime

from fastapi import Request as HttpRequest
from starlette.responses import Response

from mmserve.core import Output, Request
from mmserve.server.calls import OpenCall
from mmserve.server.drafts import Draft
from mmserve.server.events import EventStream, first_of, unless_gone
from mmserve.server.service import ID_HEADER, Service

__all__ = ["ask", "collect", "now_s", "prompt_ids"]

News = AsyncIterator[tuple[int, Output]]


async def ask(
    http: HttpRequest,
    opened: OpenCall,
    *,
    whole: Callable[[list[Draft]], Response],
    events: Callable[[News], AsyncIterator[str]] | None,
    shown_id: str,
    done_after_error: bool = False,
    tell: Callable[[Exception], str] | None = None,
) -> Response:
    """The response to an opened call: `events` of its news, or `whole` once all is said.

    A refusal, and a failure before the first news, is raised, so that it has its status. If the
    client leaves, the call is aborted. A stream's failure is told as `EventStream` says.

    Changes: the call is closed, by the stream where there is one.
    """
    response: Response | None = None
    try:
        await unless_gone(http, opened, opened.accepted())
        if events is not None:
            news = await unless_gone(http, opened, first_of(opened.news()))
            response = EventStream(
                events(news), opened, done_after_error=done_after_error, tell=tell
            )
        else:
            response = whole(await unless_gone(http, opened, collect(opened)))
            opened.close()
    finally:
        if response is None:
            opened.close()
    response.headers[ID_HEADER] = shown_id
    return response


async def collect(opened: OpenCall) -> list[Draft]:
    """All sequences of a call, from their first news to their end."""
    drafts = [Draft() for _ in range(opened.num_sequences)]
    async for number, output in opened.news():
        drafts[number].add(output)
    return drafts


async def prompt_ids(service: Service, http: HttpRequest, request: Request) -> list[int]:
    """Token ids of a request's prompt; media are read as far as their size.

    Raises what the request is refused with. Generates nothing.
    """
    sampling = replace(request.sampling, max_new_tokens=0, min_new_tokens=0, n=1)
    opened = service.calls.open([replace(request, sampling=sampling)], [])
    try:
        reports = await unless_gone(http, opened, opened.accepted())
        return list(reports[0].token_ids)
    finally:
        opened.close()


def now_s() -> int:
    """Wall clock in whole seconds since 1970."""
    return int(datetime.now(tz=UTC).timestamp())
