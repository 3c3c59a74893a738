"""Calls of another server: what cannot be reached and what it refuses are errors of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmserve.batch.replies import error_of
from mmserve.core import BackendFailed

if TYPE_CHECKING:
    import httpx

__all__ = ["called", "check"]

_REFUSED = 400


def called(
    url: str, errors: tuple[type[Exception], ...], send: Callable[[], httpx.Response]
) -> httpx.Response:
    """What `send` gets from the server at `url`. Raises BackendFailed for any of `errors`."""
    try:
        return send()
    except errors as error:
        message = f"cannot reach {url}: {str(error) or type(error).__name__}"
        raise BackendFailed(message, hint="is the server running?", status=None) from error


def check(response: httpx.Response) -> None:
    """Raises what a refusal says. Pure."""
    if response.status_code < _REFUSED:
        return
    try:
        body = response.json()
    except ValueError:
        body = None
    raise error_of(response.status_code, body, response.headers.get("retry-after"))
