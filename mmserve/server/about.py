"""Routes that tell about the server: models, settings, counters, health."""

from __future__ import annotations

import asyncio
import importlib.metadata
from dataclasses import asdict
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import CallTimeout, NotFound, RawPart, Request, SamplingParams
from mmserve.server.answer import collect
from mmserve.server.calls import OpenCall
from mmserve.server.errors import not_ready
from mmserve.server.events import unless_gone
from mmserve.server.fields import shown
from mmserve.server.metrics import metrics_text
from mmserve.server.service import Service

__all__ = [
    "health",
    "health_generate",
    "livez",
    "metrics",
    "model",
    "model_info",
    "models",
    "server_info",
]

_PROBE_TIMEOUT_S = 20.0
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def models(service: Service, _http: HttpRequest) -> Response:
    """The one model served, in OpenAI's form."""
    return JSONResponse({"object": "list", "data": [_model_entry(service)]})


async def model(service: Service, http: HttpRequest) -> Response:
    """One model by its name. Raises NotFound for any but the one served."""
    asked: str = http.path_params["name"]
    if asked != service.client.model.name:
        message = f"the model {shown(asked)} is not served"
        raise NotFound(message, field="model", what="model", name=asked[:100])
    return JSONResponse(_model_entry(service))


async def model_info(service: Service, _http: HttpRequest) -> Response:
    """The model's facts as native clients read them."""
    facts = service.client.model
    return JSONResponse(
        {
            "model_path": facts.name,
            "tokenizer_path": facts.name,
            "is_generation": True,
            "has_image_understanding": facts.has_images,
            "model_type": facts.family,
            "context_length": facts.context_length,
        }
    )


async def server_info(service: Service, _http: HttpRequest) -> Response:
    """Settings, version and counters; the API key is not among them."""
    settings: dict[str, Any] = asdict(service.config)
    settings["api_key"] = None if settings["api_key"] is None else "***"
    facts = service.client.model
    return JSONResponse(
        {
            "version": importlib.metadata.version("mmserve"),
            "model_path": facts.name,
            "context_length": facts.context_length,
            "num_slots": facts.num_slots,
            "settings": settings,
            "counters": service.client.counters() | service.counts.series(),
            "internal_states": [{}],
        }
    )


async def livez(_service: Service, _http: HttpRequest) -> Response:
    """Says that the HTTP server answers, whatever the engine does."""
    return JSONResponse({"status": "alive"})


async def health(service: Service, _http: HttpRequest) -> Response:
    """Says whether requests can be served."""
    try:
        service.client.counters()
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not well
        return not_ready(error)
    return JSONResponse({"status": "ready"})


async def health_generate(service: Service, http: HttpRequest) -> Response:
    """Sends one token through the engine, at most 20 s long."""
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    request = Request(request_id="", parts=(RawPart("a"),), sampling=sampling)
    opened = service.calls.open([request], [])
    try:
        await unless_gone(http, opened, _probe(opened))
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not well
        return not_ready(error)
    finally:
        opened.close()
    return JSONResponse({"status": "ready"})


async def metrics(service: Service, _http: HttpRequest) -> Response:
    """Counters and gauges of engine and server in Prometheus' text format."""
    content = metrics_text(service.client.counters(), service.counts.series())
    return Response(content, media_type=_METRICS_TYPE)


def _model_entry(service: Service) -> dict[str, Any]:
    facts = service.client.model
    return {
        "id": facts.name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "mmserve",
        "max_model_len": facts.context_length,
    }


async def _probe(opened: OpenCall) -> None:
    try:
        async with asyncio.timeout(_PROBE_TIMEOUT_S):
            await opened.accepted()
            await collect(opened)
    except TimeoutError:
        message = f"no token came within {_PROBE_TIMEOUT_S:g} s"
        raise CallTimeout(message, timeout_s=_PROBE_TIMEOUT_S) from None
