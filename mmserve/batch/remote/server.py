"""One server: questions as calls of its native route.

    Request -> {"parts": [{"role": "user", "parts": [{"video": {"url"}}, {"text"}]}, ...]}
            -> POST /generate -> WholeAnswer

Local files are uploaded once and named by id; they travel as data: addresses where the server
takes no files, for it reads no paths of others.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from mmserve.batch.remote.addresses import DataAddresses, bytes_address
from mmserve.batch.remote.calling import check
from mmserve.batch.remote.uploads import Held, Uploads
from mmserve.batch.whole import WholeAnswer
from mmserve.core import (
    BackendFailed,
    BytesSource,
    MediaSource,
    PathSource,
    Request,
    UnsupportedByBackend,
    UrlSource,
)
from mmserve.core.wire import generate_body, output_from, report_from

if TYPE_CHECKING:
    import httpx

__all__ = ["Lost", "Server"]

_CONNECT_S = 10.0
_ANSWER_S = 600.0
_ABORT_S = 5.0
_NOT_FOUND = 404
_UNSENT = ("options", "tools", "chat_template")


class Lost(Exception):
    """No answer came back from a server: it was not reached, or the connection broke.

    Args:
        error: the same, as it is told if nobody else is asked.
        was_sent: whether the server may have begun with the question.
        is_silence: whether nothing broke, and only the time was up.
    """

    def __init__(self, error: BackendFailed, *, was_sent: bool, is_silence: bool) -> None:
        super().__init__(error.message)
        self.error = error
        self.was_sent = was_sent
        self.is_silence = is_silence


class Server:
    """A server and the files it holds for us. Safe from any thread; close it.

    Args:
        url: `http://host:port`.
        api_key: sent as a bearer token.
        concurrency: connections kept open.
    """

    def __init__(self, url: str, api_key: str | None, concurrency: int) -> None:
        import httpx  # noqa: PLC0415 - takes 0.1 s, and runs without a server do without

        self.url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            trust_env=False,
        )
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL)
        self._unsent: tuple[type[Exception], ...] = (httpx.ConnectError, httpx.ConnectTimeout)
        self._silence: type[Exception] = httpx.ReadTimeout
        self.uploads = Uploads(self._http.post, self._http.delete, self._errors)
        self._inline = DataAddresses()

    def close(self, *, is_up: bool) -> None:
        """Have uploaded files deleted, if it is up, and close the connections. Idempotent."""
        if is_up:
            self.uploads.close()
        self._http.close()

    def check_ready(self) -> None:
        """Raises BackendFailed if it cannot be asked now, or what it says why not."""
        try:
            check(self._http.get("/health", timeout=_CONNECT_S))
        except self._errors as error:
            raise self._lost(error).error from error

    def model_name(self) -> str | None:
        """The model that it says it serves; None if it does not say. Raises BackendFailed."""
        try:
            response = self._http.get("/model_info", timeout=_CONNECT_S)
        except self._errors as error:
            raise self._lost(error).error from error
        try:
            name = response.json()["model_path"] if response.is_success else None
        except (ValueError, KeyError, TypeError):
            return None
        return name if isinstance(name, str) else None

    def ask(self, request: Request) -> WholeAnswer:
        """The whole answer. Raises Lost, or the refusal that the server gave.

        If the server says that it has no file of a name, the file is sent again, and then
        inline: one that keeps less than a call needs would lose the first file by the last.
        """
        for name in _UNSENT:
            if getattr(request, name):
                raise UnsupportedByBackend(
                    f"{name} over HTTP", parameter=name, backend=self.url
                )
        for may_name in (True, True, False):
            with _Files(self.uploads, self._inline, may_name=may_name) as files:
                response = self._sent(request, files)
                if not files.are_lost(response):
                    return self._read(request, response)
        raise BackendFailed(f"{self.url} loses files that it was not sent", status=_NOT_FOUND)

    def abort(self, request_id: str) -> None:
        """Stop a question, if the server can be told."""
        with contextlib.suppress(*self._errors):
            self._http.post("/abort_request", json={"rid": request_id}, timeout=_ABORT_S)

    def _sent(self, request: Request, files: _Files) -> httpx.Response:
        try:
            body = generate_body(request, files.address, is_streamed=False)
            return self._http.post("/generate", json=body)
        except self._errors as error:
            raise self._lost(error) from error

    def _read(self, request: Request, response: httpx.Response) -> WholeAnswer:
        check(response)
        try:
            reply: Any = response.json()
            replies = reply if isinstance(reply, list) else [reply]
            outputs = [
                output_from({"index": index, **item}, request)
                for index, item in enumerate(replies)
            ]
            report = report_from(replies[0])
        except (ValueError, TypeError, IndexError, BackendFailed) as error:
            message = f"{self.url} answered in another form: {error}"
            raise BackendFailed(message, status=response.status_code) from error
        return WholeAnswer(tuple(outputs), report)

    def _lost(self, error: Exception) -> Lost:
        message = f"cannot reach {self.url}: {str(error) or type(error).__name__}"
        return Lost(
            BackendFailed(message, hint="is the server running?", status=None),
            was_sent=not isinstance(error, self._unsent),
            is_silence=isinstance(error, self._silence),
        )


class _Files:
    """The local files of one call, held while it is under way. Used by one thread."""

    def __init__(self, uploads: Uploads, inline: DataAddresses, *, may_name: bool) -> None:
        self._uploads = uploads
        self._inline = inline
        self._may_name = may_name
        self._held: list[Held] = []

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *error: object) -> None:
        for held in self._held:
            self._uploads.release(held)

    def address(self, source: MediaSource) -> str:
        """The address under which a source goes over the wire. Changes: what is held."""
        match source:
            case UrlSource(url):
                return url
            case PathSource(path):
                return self._name(path) or self._inline.of(path)
            case BytesSource(content):
                return bytes_address(content)
        kind = type(source).__name__
        raise UnsupportedByBackend(f"{kind} over HTTP", parameter=kind)

    def are_lost(self, response: httpx.Response) -> bool:
        """Whether the server says that it does not have a file named here.

        Then all of this call's files are forgotten: it may have lost the others as well, and
        tells of one only. Changes: what is known.
        """
        if response.status_code != _NOT_FOUND or not self._may_name:
            return False
        names = [name for held in self._held if (name := held.name.result())]
        if not any(name in response.text for name in names):
            return False
        for held in self._held:
            self._uploads.forget(held)
        return True

    def _name(self, path: str) -> str | None:
        if not self._may_name:
            return None
        held = self._uploads.hold(path)
        self._held.append(held)
        return held.name.result()
