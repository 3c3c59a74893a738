"""Media sent to a server once, then named by the id of the file it keeps.

    content -> digest -> known id            named
                      -> on its way          wait for the one who sends it
                      -> POST /v1/files      named, and known from now on
                      -> no such route, or too large: sent inline with each call

Only digests and ids are kept. A server may forget a file: the call that hears of it tells us,
and sends the content again.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

from mmserve.core import BackendFailed, BytesSource, MediaSource, NotFound
from mmserve.lang.backends.transport import refusal, transport_errors
from mmserve.lang.conversation import source_url
from mmserve.lang.media import media_type

if TYPE_CHECKING:
    import httpx

__all__ = ["LEAST_BYTES", "CallNames", "Uploads"]

LEAST_BYTES = 1024
"""Smaller content goes inline: an upload of its own would cost more than it spares."""

_MOST_KNOWN = 100_000
_NO_ROUTE = (404, 405, 501)
_TOO_LARGE = 413
_REFUSED = 400


class Uploads:
    """What one server has been sent. Safe from any thread; one per endpoint."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, str | None] = OrderedDict()  # None: goes inline
        self._under_way: dict[bytes, Future[str | None]] = {}
        self._has_route = True

    def name_of(self, content: bytes) -> str | None:
        """The id of the file that holds this content; None if it has to go inline.

        Waits for the upload, which happens once however many threads ask. Changes: what the
        server keeps. Raises what the upload raises, in every thread that waits for it.
        """
        if len(content) < LEAST_BYTES or not self._has_route:
            return None
        digest = _digest(content)
        with self._lock:
            if digest in self._known:
                self._known.move_to_end(digest)
                return self._known[digest]
            flight = self._under_way.get(digest)
            is_mine = flight is None
            if flight is None:
                flight = self._under_way[digest] = Future()
        return self._fly(content, digest, flight) if is_mine else flight.result()

    def forget(self, content: bytes, name: str) -> None:
        """The server says that it has no file of this name. Changes: what is known."""
        digest = _digest(content)
        with self._lock:
            if self._known.get(digest) == name:  # else somebody has sent it again already
                del self._known[digest]

    def attempts(self) -> Iterator[CallNames]:
        """Ways to name the media of one call, each to be tried if the one before was lost.

        By id, by id again, and inline: a server that keeps less than one call needs would lose
        the first file by the last.
        """
        yield CallNames(self, may_name=True)
        yield CallNames(self, may_name=True)
        yield CallNames(self, may_name=False)

    def _fly(self, content: bytes, digest: bytes, flight: Future[str | None]) -> str | None:
        """Send it, and tell those who wait."""
        try:
            name = self._upload(content)
        except BaseException as error:
            self._land(digest)
            flight.set_exception(error)
            raise
        self._land(digest, name)
        flight.set_result(name)
        return name

    def _land(self, digest: bytes, *names: str | None) -> None:
        """The upload has ended. A failure is not kept: whoever asks next tries again."""
        with self._lock:
            del self._under_way[digest]
            for name in names:
                self._known[digest] = name
            if len(self._known) > _MOST_KNOWN:
                self._known.popitem(last=False)

    def _upload(self, content: bytes) -> str | None:
        with transport_errors(str(self._http.base_url)):
            response = self._http.post(
                "/v1/files",
                files={"file": ("media", content, media_type(content))},
                data={"purpose": "vision"},
            )
        if response.status_code in _NO_ROUTE:
            self._has_route = False
            return None
        if response.status_code == _TOO_LARGE:
            return None
        if response.status_code >= _REFUSED:
            raise refusal(response)
        return _id_in(response)


class CallNames:
    """The addresses of one call's media, and the names among them. Used by one thread."""

    def __init__(self, uploads: Uploads, *, may_name: bool) -> None:
        self._uploads = uploads
        self._may_name = may_name
        self._contents: dict[str, bytes] = {}

    def url_of(self, source: MediaSource) -> str:
        """The id of local content, uploaded if need be; its data URL where it goes inline.

        Addresses stay what they are. Raises what the upload raises.
        """
        if not (self._may_name and isinstance(source, BytesSource)):
            return source_url(source)
        name = self._uploads.name_of(source.content)
        if name is None:
            return source_url(source)
        self._contents[name] = source.content
        return name

    def are_lost(self, error: NotFound) -> bool:
        """Whether the server says that it does not have a file named here.

        Then all of this call's names are forgotten: it may have lost the others as well, and
        tells of one only. Changes: what is known.
        """
        if not any(name in error.message for name in self._contents):
            return False
        for name, content in self._contents.items():
            self._uploads.forget(content, name)
        return True


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=20).digest()


def _id_in(response: httpx.Response) -> str:
    try:
        name = response.json()["id"]
    except (ValueError, KeyError, TypeError):
        name = None
    if not isinstance(name, str) or not name:
        message = "the server's reply to an upload has no id"
        raise BackendFailed(message, status=response.status_code)
    return name
