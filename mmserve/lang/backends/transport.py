"""What goes wrong between a server and us, as errors of the house."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mmserve.core import BackendFailed, CallTimeout, MmserveError
from mmserve.core.wire import error_from

if TYPE_CHECKING:
    import httpx

__all__ = ["SILENCE_S", "refusal", "transport_errors"]

SILENCE_S = 600.0  # longest wait for the next event of a stream


@contextlib.contextmanager
def transport_errors(address: str) -> Iterator[None]:
    """Turn what goes wrong on the way into errors of the house."""
    import httpx  # noqa: PLC0415  slow to import, and engines in this process do without

    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        message = f"cannot reach {address}: {error}"
        raise BackendFailed(message, status=None, hint="is the server running?") from error
    except httpx.TimeoutException as error:
        message = f"{address} was silent for {SILENCE_S:g} s"
        raise CallTimeout(message, timeout_s=SILENCE_S) from error
    except httpx.HTTPError as error:
        message = f"the connection to {address} broke: {error}"
        raise BackendFailed(message, status=None) from error


def refusal(response: httpx.Response) -> MmserveError:
    """The error that a response with an error status stands for. Pure."""
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        body = None
    return error_from(response.status_code, body, response.headers.get("retry-after"))
