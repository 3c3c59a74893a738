"""One `/generate` call over HTTP: a thread receives, a reader takes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mmserve.core import Aborted, BackendFailed, MmserveError, NotFound, Output, Request
from mmserve.core.wire import output_from
from mmserve.lang.backends.news import News
from mmserve.lang.backends.replies import events
from mmserve.lang.backends.transport import refusal, transport_errors
from mmserve.lang.backends.uploads import Uploads
from mmserve.lang.backends.wire import request_body

if TYPE_CHECKING:
    import httpx

__all__ = ["HttpCall"]

_ABORT_S = 5.0
_REFUSED = 400


class HttpCall:
    """A request under way at a server. Mutable; outputs are read once, by one reader.

    `uploads` names the request's media; `extras` are fields of the body beyond the request's
    own. `meta` is the last meta info.
    """

    def __init__(
        self,
        http: httpx.Client,
        uploads: Uploads,
        request: Request,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        self._http = http
        self._uploads = uploads
        self._request = request
        self._extras = dict(extras or {})
        self.meta: Mapping[str, Any] = {}
        self._news = News()
        self._is_cancelled = False
        self._has_ended = False
        threading.Thread(target=self._receive, name="mmserve-call", daemon=True).start()

    def outputs(self) -> Iterator[Output]:
        """Outputs as they come. Raises the server's error, or Aborted after `cancel`."""
        return self._news.read()

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
        for names in self._uploads.attempts():
            body = request_body(self._request, names.url_of) | self._extras
            if self._is_cancelled:  # uploads take a while
                return
            try:
                self._post(body)
            except NotFound as error:  # told by the status, so nothing was streamed
                if not names.are_lost(error):
                    raise
            else:
                return

    def _post(self, body: Mapping[str, object]) -> None:
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


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    # Only newlines end a line of an event stream; text may hold other line separators.
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line.decode("utf-8")
    if rest:
        yield rest.decode("utf-8")
