"""The outermost layer: every request has an id, is counted, and gets its line and its spans."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.server.counts import Counts
from mmserve.server.errors import ANTHROPIC_ID_HEADER, is_anthropic
from mmserve.server.histograms import Histograms
from mmserve.server.service import ID_HEADER
from mmserve.server.visit import VISIT, Visit
from mmserve.server.watch.lines import log_visit

__all__ = ["Watch"]

_ID = re.compile(r"[\x21-\x7e]{1,128}")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
_FAILED_FROM = 400
Tell = Callable[[Visit, Headers, float], None]
"""Takes a visit that has ended, the request's headers, and when it ended (monotonic)."""


class Watch:
    """ASGI middleware around everything.

    Args:
        paths: templates of the app's routes; what fits none is told as "other".
        tell: also told of every visit at its end; None for nobody.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        counts: Counts,
        histograms: Histograms,
        paths: Collection[str],
        tell: Tell | None = None,
    ) -> None:
        self._app = app
        self._counts = counts
        self._histograms = histograms
        self._tell = tell
        self._route_of = _router(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI protocol. Changes: counts and histograms, before the last byte is sent."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get(ID_HEADER, "")
        shown_id = given if _ID.fullmatch(given) else uuid.uuid4().hex
        method = scope["method"] if scope["method"] in _METHODS else "other"
        visit = Visit(shown_id, self._route_of(scope["path"]), method, self._histograms)
        visit.on_end.append(lambda: self._end(visit, headers))

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._begin(visit, message, scope["path"])
            elif not message.get("more_body", False):
                visit.end()  # so that whoever has the answer finds it counted
            await send(message)

        token = VISIT.set(visit)
        try:
            await self._app(scope, receive, watched)
        finally:
            VISIT.reset(token)
            visit.end()

    def _begin(self, visit: Visit, message: Message, path: str) -> None:
        visit.status = message["status"]
        status = str(visit.status)
        self._counts.add("http_requests_total", route=visit.route, status=status)
        headers = MutableHeaders(scope=message)
        if ID_HEADER in headers:
            visit.shown_id = headers[ID_HEADER]
        else:
            headers[ID_HEADER] = visit.shown_id
        if is_anthropic(path):
            headers[ANTHROPIC_ID_HEADER] = visit.shown_id

    def _end(self, visit: Visit, headers: Headers) -> None:
        ended_s = time.monotonic()
        status = visit.status
        if status is None:
            visit.fail("aborted")
        elif status >= _FAILED_FROM:
            visit.fail("refused")
        word = "none" if status is None else str(status)
        self._counts.add(
            "requests_total", route=visit.route, status=word, reason=visit.reason()
        )
        if any(sequence.finish for call in visit.calls for sequence in call.sequences):
            self._histograms.cell("request_seconds", route=visit.route).observe(
                ended_s - visit.started_s
            )
        for kind, number in visit.tokens().items():
            if number:
                self._counts.add("tokens_total", number, route=visit.route, kind=kind)
        log_visit(visit, ended_s)
        if self._tell is not None:
            self._tell(visit, headers, ended_s)


def _router(paths: Collection[str]) -> Callable[[str], str]:
    """Gives the template that a path fits, or "other"."""
    exact = frozenset(path for path in paths if "{" not in path)
    patterns = []
    for path in paths:
        if "{" in path:
            words = re.sub(r"\\{\w+:path\\}", ".+", re.escape(path))
            patterns.append((re.compile(re.sub(r"\\{\w+\\}", "[^/]+", words)), path))

    def route_of(path: str) -> str:
        if path in exact:
            return path
        return next((word for pattern, word in patterns if pattern.fullmatch(path)), "other")

    return route_of
