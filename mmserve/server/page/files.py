"""The page's own files: part of the package, read once, the same for everybody.

They hold no secret and need no key; what the page asks of the API does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from importlib.resources import files
from pathlib import PurePath

from fastapi import Request as HttpRequest
from starlette.responses import Response

from mmserve.server.service import Service

__all__ = ["page_routes", "page_types"]

Handler = Callable[[Service, HttpRequest], Awaitable[Response]]

_INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' blob: data:",
    "media-src blob:",
    "connect-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "; ".join(_POLICY),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page_routes() -> tuple[tuple[str, tuple[str, ...], Handler], ...]:
    """A route for each file: `/` for the index, `/page/NAME` for the others. Pure."""
    return tuple(
        (_path(name), ("GET",), _handler(name, content))
        for name, content in _contents().items()
    )


def page_types() -> dict[str, str]:
    """The media type of each file, by its path. Pure."""
    return {_path(name): _TYPES[PurePath(name).suffix] for name in _contents()}


def _path(name: str) -> str:
    return "/" if name == _INDEX else f"/page/{name}"


@cache
def _contents() -> dict[str, bytes]:
    folder = files("mmserve.server.page") / "static"
    found = (entry for entry in folder.iterdir() if PurePath(entry.name).suffix in _TYPES)
    return {entry.name: entry.read_bytes() for entry in sorted(found, key=lambda e: e.name)}


def _handler(name: str, content: bytes) -> Handler:
    media_type = _TYPES[PurePath(name).suffix]

    async def handle(_service: Service, _http: HttpRequest) -> Response:
        return Response(content, media_type=media_type, headers=_HEADERS)

    handle.__doc__ = f"The page's file {name}."
    return handle
