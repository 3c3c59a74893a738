"""Routes that tell about the server: models, settings, counters, health."""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse
from starlette.responses import Response

from mmserve.core import (
    CallTimeout,
    EngineDown,
    NotFound,
    RawPart,
    Request,
    SamplingParams,
    ServerConfig,
    parse_series,
)
from mmserve.server.answer import collect
from mmserve.server.calls import OpenCall
from mmserve.server.errors import not_ready
from mmserve.server.events import unless_gone
from mmserve.server.fields import shown
from mmserve.server.service import Service
from mmserve.server.watch.metrics import metrics_text

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
_STARS = "***"


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
    """Settings, version, scheduler and counters; API keys are not among them."""
    facts = service.client.model
    counters = await _counters(service)
    return JSONResponse(
        {
            "version": importlib.metadata.version("mmserve"),
            "model_path": facts.name,
            "context_length": facts.context_length,
            "num_slots": facts.num_slots,
            "kernels": list(facts.kernels),
            "settings": _settings(service.config),
            "scheduler": _scheduler(counters),
            "counters": counters | service.series(),
            "internal_states": [{}],
        }
    )


async def livez(_service: Service, _http: HttpRequest) -> Response:
    """Says that the HTTP server answers, whatever the engine does."""
    return JSONResponse({"status": "alive"})


async def health(service: Service, _http: HttpRequest) -> Response:
    """Says whether requests can be served: not while the server ends, or has no engine."""
    if service.calls.refusal is not None:
        return not_ready(service.calls.refusal)
    try:
        counters = await _counters(service)
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not well
        return not_ready(error)
    if counters.get("engine_up", 1) == 0:
        return not_ready(EngineDown("the engine is down, another is started"))
    return JSONResponse({"status": "ready"})


async def health_generate(service: Service, http: HttpRequest) -> Response:
    """Sends one token through the engine, at most 20 s long."""
    sampling = SamplingParams(max_new_tokens=1, temperature=0.0, ignore_eos=True)
    request = Request(request_id="", parts=(RawPart("a"),), sampling=sampling)
    try:
        opened = service.calls.open([request], [])
    except Exception as error:  # noqa: BLE001 - the server is about to end
        return not_ready(error)
    try:
        await unless_gone(http, opened, _probe(opened))
    except Exception as error:  # noqa: BLE001 - whatever it is, the engine is not well
        return not_ready(error)
    finally:
        opened.close()
    return JSONResponse({"status": "ready"})


async def metrics(service: Service, _http: HttpRequest) -> Response:
    """Counters, gauges and histograms of engine and server in Prometheus' text format."""
    counters = await _counters(service)
    content = metrics_text(counters, service.series(), histograms=service.histograms)
    return Response(content, media_type=_METRICS_TYPE)


async def _counters(service: Service) -> dict[str, float]:
    # the optimum of the latest requests takes some milliseconds: not on the event loop
    return await asyncio.to_thread(service.client.counters)


def _settings(config: ServerConfig) -> dict[str, Any]:
    """The server's settings with stars for keys. Pure."""
    settings: dict[str, Any] = asdict(config)
    for name in ("api_key", "admin_key"):
        settings[name] = None if settings[name] is None else _STARS
    settings["client_keys"] = {name: _STARS for name, _ in config.client_keys}
    return settings


def _scheduler(counters: Mapping[str, float]) -> dict[str, Any]:
    """The scheduler's settings, and rates over the latest requests; null before the first."""
    found: dict[str, Any] = {}
    for key in counters:
        name, labels = parse_series(key)
        if name == "sched_info":
            found |= labels | {"fairness": labels["fairness"] == "on"}
    num_tokens = counters.get("recent_prompt_tokens", 0)
    for name in ("hit", "optimal_hit"):
        num_hits = counters.get(f"recent_{name}_tokens", 0)
        found[f"recent_{name}_rate"] = round(num_hits / num_tokens, 6) if num_tokens else None
    return found


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
