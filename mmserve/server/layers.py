"""What lies around all routes, inside out: the guard, pages of other origins, Watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from mmserve.core import ServerConfig
from mmserve.server.errors import ANTHROPIC_ID_HEADER
from mmserve.server.guard import Guard
from mmserve.server.service import ID_HEADER, Service
from mmserve.server.watch.collector import open_tracing
from mmserve.server.watch.requests import Watch

if TYPE_CHECKING:
    from mmserve.server.watch.tracing import Tracing

__all__ = ["Paths", "add_layers", "tracing_of"]

_CORS_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
_CORS_TOLD = (ID_HEADER, ANTHROPIC_ID_HEADER, "Retry-After")


def tracing_of(config: ServerConfig) -> Tracing | None:
    """Sends spans to the collector that the config names, if it names one.

    Raises MissingExtra if the packages for it are not installed.
    """
    return None if config.otlp_endpoint is None else open_tracing(config.otlp_endpoint)


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths of an app's routes, and those of them that answer without a key."""

    known: frozenset[str]
    without_key: frozenset[str]


def add_layers(app: FastAPI, service: Service, paths: Paths, tracing: Tracing | None) -> None:
    """Put the layers around `app`, whose routes have these paths. Changes: the app."""
    app.add_middleware(
        Guard, config=service.config, gate=service.gate, open_paths=paths.without_key
    )
    if service.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=service.config.cors_origins,
            allow_methods=_CORS_METHODS,
            allow_headers=("*",),  # clients send many, and none of them has a power of its own
            expose_headers=_CORS_TOLD,
        )
    app.add_middleware(
        Watch,
        counts=service.counts,
        histograms=service.histograms,
        paths=paths.known,
        tell=None if tracing is None else tracing.tell,
    )
