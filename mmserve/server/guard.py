"""The outermost layer: the API key first, every failure as JSON, every answer counted."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.core import ServerConfig
from mmserve.server.clients import key_of, may_enter
from mmserve.server.counts import Counts
from mmserve.server.errors import error_response, key_missing

__all__ = ["OPEN_PATHS", "Guard"]

OPEN_PATHS = frozenset({"/health", "/livez"})
"""What answers without the API key, spelled exactly so."""

_MAX_LOG_LINE = 400
_log = logging.getLogger(__name__)


class Guard:
    """ASGI middleware around all routes, known and unknown."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        config: ServerConfig,
        counts: Counts,
        paths: Collection[str],
        open_paths: Collection[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._config = config
        self._counts = counts
        self._paths = paths
        self._open_paths = frozenset(open_paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI protocol. Changes: the counts."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self._count(scope["path"], status)
            await send(message)

        if not self._may_pass(scope):
            await error_response(key_missing(), scope["path"])(scope, receive, watched)
            return
        try:
            await self._app(scope, receive, watched)
        except Exception as error:  # noqa: BLE001 - a client must get JSON, the log the reason
            _log_failure(error)
            if status is None:
                await error_response(error, scope["path"])(scope, receive, watched)

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in self._open_paths:
            return True
        return may_enter(key_of(scope["headers"]), self._config)

    def _count(self, path: str, status: int) -> None:
        route = path if path in self._paths else "other"
        self._counts.add("http_requests_total", route=route, status=str(status))


def _log_failure(error: Exception) -> None:
    lines = "".join(traceback.format_exception(error)).splitlines()
    _log.error("a request failed\n%s", "\n".join(line[:_MAX_LOG_LINE] for line in lines[-40:]))
