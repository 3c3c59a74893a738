"""Calls of another server: what cannot be reached and what it refuses are errors of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmserve.core import BackendFailed, Busy, MmserveError
from mmserve.core.wire import error_from

if TYPE_CHECKING:
    import httpx

__all__ = ["called", "check", "error_of"]

_REFUSED = 400
_NOT_THE_ROWS = (401, 403, 404, 405)
_WAIT_S = 1


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


def error_of(status: int, body: object, retry_after: str | None = None) -> MmserveError:
    """The error that a reply stands for, as `error_from`, told apart for rows. Pure.

    A wrong key or route is the backend's: no row can mend it.
    """
    error = error_from(status, body, retry_after)
    if status in _NOT_THE_ROWS:
        return BackendFailed(error.message, status=status)
    if isinstance(error, Busy):
        fields = {"retry_after_s": _WAIT_S, **error.fields}
        return Busy(error.message, hint=error.hint, **fields)
    return error
