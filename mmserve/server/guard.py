"""The layer around all routes: the API key first, then the limits, every failure as JSON."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.core import ServerConfig
from mmserve.server.clients import caller_of, key_of, may_enter
from mmserve.server.errors import error_object, error_response, key_missing
from mmserve.server.failures import failure_text
from mmserve.server.gate import Gate
from mmserve.server.visit import Visit, here

__all__ = ["OPEN_PATHS", "UNLIMITED_PATHS", "Guard"]

OPEN_PATHS = frozenset({"/health", "/livez"})
"""What answers without the API key, spelled exactly so."""

UNLIMITED_PATHS = frozenset(
    {*OPEN_PATHS, "/metrics", "/server_info", "/abort_request", "/flush_cache"}
)
"""What an operator needs while the server is full; these count as no open request."""

_log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware around all routes, known and unknown, within `Watch`."""

    def __init__(
        self, app: ASGIApp, *, config: ServerConfig, gate: Gate, open_paths: frozenset[str]
    ) -> None:
        self._app = app
        self._config = config
        self._gate = gate
        self._open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI protocol. Changes: the visit knows its caller, and its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started = False

        async def watched(message: Message) -> None:
            nonlocal has_started
            has_started = has_started or message["type"] == "http.response.start"
            await send(message)

        visit = here()
        try:
            self._admit(scope, visit)
            await self._app(scope, receive, watched)
        except HTTPException as error:
            await _answer(error, visit, scope["path"])(scope, receive, watched)
        except Exception as error:  # noqa: BLE001 - a client must get JSON, the log the reason
            _log.error("a request failed\n%s", failure_text(error))
            if not has_started:
                await _answer(error, visit, scope["path"])(scope, receive, watched)

    def _admit(self, scope: Scope, visit: Visit | None) -> None:
        """Raises the 401 and 429 refusals."""
        path = scope["path"]
        if path in self._open_paths:
            return
        key = key_of(scope["headers"])
        if not may_enter(key, self._config):
            raise key_missing()
        if visit is None:
            return
        visit.caller = caller_of(key, self._config)
        visit.client = visit.caller.owner
        if path not in UNLIMITED_PATHS:
            entry = self._gate.enter(visit.caller.owner)
            visit.on_client = entry.name
            visit.on_end.append(entry.leave)


def _answer(error: Exception, visit: Visit | None, path: str) -> ASGIApp:
    if visit is None:
        return error_response(error, path)
    visit.fail(error_object(error)["error"]["code"])
    return error_response(error, path, visit.shown_id)
