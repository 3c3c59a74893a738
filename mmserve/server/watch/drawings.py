"""Routes that draw what the engine holds: its tree, last steps, grammars and encoded media."""

from __future__ import annotations

import asyncio

from fastapi import Request as HttpRequest
from starlette.responses import Response

from mmserve.core import BadRequest
from mmserve.server.fields import shown
from mmserve.server.service import Service

__all__ = ["show_constrained", "show_radix", "show_sched", "show_vision", "tell_radix"]

_HEADERS = {"Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}


async def show_constrained(service: Service, http: HttpRequest) -> Response:
    """The compiled grammars that are kept, as `format` says: text or svg."""
    return await _show(service, http, "constrained")


async def show_radix(service: Service, http: HttpRequest) -> Response:
    """The radix tree, as `format` says: text or svg."""
    return await _show(service, http, "radix")


async def show_sched(service: Service, http: HttpRequest) -> Response:
    """The last steps of the scheduler, as `format` says: text or svg."""
    return await _show(service, http, "sched")


async def show_vision(service: Service, http: HttpRequest) -> Response:
    """The encoded pictures and frames that are kept, as `format` says: text or svg."""
    return await _show(service, http, "vision")


async def tell_radix(service: Service, _http: HttpRequest) -> Response:
    """The radix tree, the queue and memory for programs; see `radix.outline`."""
    told = await asyncio.to_thread(service.client.drawing, "radix", "json")
    return Response(told, media_type="application/json", headers=_HEADERS)


async def _show(service: Service, http: HttpRequest, room: str) -> Response:
    form = http.query_params.get("format", "text")
    if form == "text":
        text = await asyncio.to_thread(service.client.drawing, room)
        return Response(f"{text}\n", media_type="text/plain; charset=utf-8", headers=_HEADERS)
    if form == "svg":
        file = await asyncio.to_thread(service.client.drawing, room, "svg")
        return Response(file, media_type="image/svg+xml", headers=_HEADERS)
    message = f"format is {shown(form)}, allowed are text and svg"
    raise BadRequest(message, field="format", reason="value")
