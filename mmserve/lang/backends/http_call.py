"""One `/generate` call over HTTP: a thread receives, a reader takes."""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmserve.core import (
    Aborted,
    BackendFailed,
    CallTimeout,
    MmserveError,
    Output,
    Request,
)
from mmserve.lang.backends.replies import error_from, events, output_from
from mmserve.lang.backends.wire import request_body

if TYPE_CHECKING:
    import httpx

__all__ = ["SILENCE_S", "HttpCall", "refusal", "transport_errors"]

SILENCE_S = 600.0  # longest wait for the next event of a stream
_ABORT_S = 5.0
_REFUSED = 400


class HttpCall:
    """A request under way at a server. Mutable; outputs are read once, by one reader.

    `extras` are fields of the body beyond the request's own. `meta` is the last meta info.
    """

    def __init__(
        self, http: httpx.Client, request: Request, extras: Mapping[str, object] | None = None
    ) -> None:
        self._http = http
        self._request = request
        self._extras = dict(extras or {})
        self.meta: Mapping[str, Any] = {}
        self._news: queue.SimpleQueue[Output | BaseException | None] = queue.SimpleQueue()
        self._is_cancelled = False
        self._has_ended = False
        threading.Thread(target=self._receive, name="mmserve-http", daemon=True).start()

    def outputs(self) -> Iterator[Output]:
        """Outputs as they come. Raises the server's error, or Aborted after `cancel`."""
        while True:
            news = self._news.get()
            if news is None:
                return
            if isinstance(news, BaseException):
                raise news
            yield news

    def cancel(self) -> None:
        """Tell the reader at once, and the server by a request of its own. Idempotent."""
        if self._is_cancelled or self._has_ended:
            return
        self._is_cancelled = True
        self._news.put(Aborted("the call was cancelled"))
        threading.Thread(target=self._abort, name="mmserve-abort", daemon=True).start()

    def _abort(self) -> None:
        with contextlib.suppress(Exception):  # the closed connection aborts it as well
            body = {"rid": self._request.request_id}
            self._http.post("/abort_request", json=body, timeout=_ABORT_S)

    def _receive(self) -> None:
        try:
            with transport_errors(str(self._http.base_url)):
                self._exchange()
            self._news.put(None)
        except MmserveError as error:
            self._news.put(error)
        except Exception as error:  # noqa: BLE001  delivered to the reader
            failed = BackendFailed(f"the call failed: {error}", status=None)
            failed.__cause__ = error
            self._news.put(failed)
        finally:
            self._has_ended = True

    def _exchange(self) -> None:
        body = request_body(self._request) | self._extras
        with self._http.stream("POST", "/generate", json=body) as response:
            if response.status_code >= _REFUSED:
                response.read()
                raise refusal(response)
            if body.get("stream"):
                for event in events(_lines(response.iter_bytes())):
                    if self._is_cancelled:
                        return  # leaving the block closes the connection
                    self._news.put(output_from(event, self._request))
            else:
                response.read()
                self._put_whole(response)

    def _put_whole(self, response: httpx.Response) -> None:
        reply = response.json()
        for index, item in enumerate(reply if isinstance(reply, list) else [reply]):
            output = output_from({"index": index, **item}, self._request)
            self.meta = item["meta_info"]
            self._news.put(output)


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


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # Only newlines end a line of an event stream; text may hold other line separators.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8")
    if rest:
        yield rest.decode("utf-8")
