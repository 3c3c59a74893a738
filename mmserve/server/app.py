"""The app: routes, what they share, and errors as answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi import Request as HttpRequest
from starlette.exceptions import HTTPException
from starlette.responses import Response

from mmserve.core import Aborted, Client, MmserveError, ServerConfig
from mmserve.server.admin import ADMIN_PATHS
from mmserve.server.answer import now_s
from mmserve.server.anthropic.messages import count_tokens, messages
from mmserve.server.calls import Calls
from mmserve.server.conversation_store import ConversationStore
from mmserve.server.counts import Counts
from mmserve.server.describe.document import document
from mmserve.server.errors import error_object, error_response
from mmserve.server.file_store import FileStore
from mmserve.server.gate import Gate
from mmserve.server.guard import OPEN_PATHS
from mmserve.server.layers import Paths, add_layers, tracing_of
from mmserve.server.native import upkeep
from mmserve.server.native.generate import generate
from mmserve.server.native.prepare import prepare
from mmserve.server.openai import files, responses, responses_stored
from mmserve.server.openai.chat import chat_completions
from mmserve.server.openai.completions import completions
from mmserve.server.page.files import page_routes
from mmserve.server.page.render import render
from mmserve.server.service import Service
from mmserve.server.surfaces import surfaces_of
from mmserve.server.systemone.ask import systemone
from mmserve.server.visit import here
from mmserve.server.watch import about
from mmserve.server.watch.drawings import (
    show_constrained,
    show_radix,
    show_sched,
    show_vision,
    tell_radix,
)

if TYPE_CHECKING:
    from mmserve.server.watch.tracing import Tracing

__all__ = ["create_app"]

_NO_METHOD = 405
Handler = Callable[[Service, HttpRequest], Awaitable[Response]]

_ROUTES: tuple[tuple[str, tuple[str, ...], Handler], ...] = (
    ("/v1/chat/completions", ("POST",), chat_completions),
    ("/v1/completions", ("POST",), completions),
    ("/v1/responses", ("POST",), responses.create),
    ("/v1/responses/{id}", ("GET",), responses_stored.tell),
    ("/v1/responses/{id}", ("DELETE",), responses_stored.delete),
    ("/v1/responses/{id}/input_items", ("GET",), responses_stored.input_items),
    ("/v1/models", ("GET",), about.models),
    ("/v1/models/{name:path}", ("GET",), about.model),
    ("/v1/files", ("GET",), files.list_files),
    ("/v1/files", ("POST",), files.upload),
    ("/v1/files/{id}", ("GET",), files.tell),
    ("/v1/files/{id}", ("DELETE",), files.delete),
    ("/v1/files/{id}/content", ("GET",), files.content),
    ("/v1/messages", ("POST",), messages),
    ("/v1/messages/count_tokens", ("POST",), count_tokens),
    ("/v1/systemone", ("POST",), systemone),
    ("/v1/render", ("POST",), render),
    ("/generate", ("POST", "PUT"), generate),
    ("/prepare", ("POST",), prepare),
    ("/model_info", ("GET",), about.model_info),
    ("/get_model_info", ("GET",), about.model_info),
    ("/server_info", ("GET",), about.server_info),
    ("/get_server_info", ("GET",), about.server_info),
    ("/flush_cache", ("GET", "POST"), upkeep.flush_cache),
    ("/abort_request", ("POST",), upkeep.abort_request),
    ("/concate_and_append_request", ("POST",), upkeep.concatenate),
    ("/tokenize", ("POST",), upkeep.tokenize),
    ("/detokenize", ("POST",), upkeep.detokenize),
    ("/v1/tokenize", ("POST",), upkeep.tokenize),
    ("/v1/detokenize", ("POST",), upkeep.detokenize),
    ("/health", ("GET",), about.health),
    ("/health_generate", ("GET",), about.health_generate),
    ("/livez", ("GET",), about.livez),
    ("/metrics", ("GET",), about.metrics),
    ("/show/constrained", ("GET",), show_constrained),
    ("/show/radix", ("GET",), show_radix),
    ("/show/radix.json", ("GET",), tell_radix),
    ("/show/sched", ("GET",), show_sched),
    ("/show/vision", ("GET",), show_vision),
)


def create_app(client: Client, config: ServerConfig, tracing: Tracing | None = None) -> FastAPI:
    """The HTTP surfaces of `client`; the app neither starts nor closes it.

    `tracing` gets the spans of requests; by default one is opened if the config names a
    collector, and `app.state.tracing` is for the caller to close.

    Raises MissingExtra if the packages for it are not installed.
    """
    tracing = tracing or tracing_of(config)
    counts = Counts()
    store = FileStore(config.max_file_store_bytes, config.file_expiry_s)
    talks = ConversationStore(config.response_store_bytes, config.response_expiry_s)
    gate = Gate(config.max_open_requests, config.max_client_requests)
    service = Service(client, config, Calls(client), counts, now_s(), store, talks, gate)
    app = FastAPI(title="mmserve", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.calls, app.state.files = service.calls, store
    app.state.conversations, app.state.tracing = talks, tracing
    page = page_routes() if config.is_page_served else ()
    known: dict[str, set[str]] = {}
    for path, methods, handler in _ROUTES + page:
        all_methods = (*methods, "HEAD") if "GET" in methods else methods
        known.setdefault(path, set()).update(all_methods)
        for method in all_methods:
            _add(app, path, method, handler, service)
    app.add_exception_handler(MmserveError, _refuse(counts, known))
    app.add_exception_handler(HTTPException, _refuse(counts, known))
    paths = Paths(
        known=frozenset(known),
        without_key=OPEN_PATHS.union(path for path, _, _ in page),
    )
    add_layers(app, service, paths, tracing)
    told = document(surfaces_of(config), config)
    app.openapi = lambda: told  # type: ignore[method-assign]  # as FastAPI's documents say
    return app


def _add(app: FastAPI, path: str, method: str, handler: Handler, service: Service) -> None:
    async def endpoint(http: HttpRequest) -> Response:
        if path in ADMIN_PATHS:
            service.check_admin(http)
        return await handler(service, http)

    app.add_api_route(
        path,
        endpoint,
        methods=[method],
        name=f"{method.lower()}{path.replace('/', '_')}",
        description=handler.__doc__ or "",
        response_model=None,
        include_in_schema=method != "HEAD",
    )


def _refuse(
    counts: Counts, known: Mapping[str, Collection[str]]
) -> Callable[[HttpRequest, Exception], Awaitable[Response]]:
    """Errors as answers; `known` are the methods of each path."""

    async def handle(http: HttpRequest, error: Exception) -> Response:
        code, visit = error_object(error)["error"]["code"], here()
        if not isinstance(error, Aborted):  # who has left is counted among the ends
            counts.add("request_errors_total", code=code)
        if visit is not None:
            visit.fail(code)
        response = error_response(error, http.url.path, "" if visit is None else visit.shown_id)
        if visit is not None and response.status_code == _NO_METHOD and visit.route in known:
            response.headers["Allow"] = ", ".join(sorted(known[visit.route]))
        return response

    return handle
