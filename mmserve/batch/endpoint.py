"""A server in place of the engine: one `/generate` call for each question.

    Request -> {"parts": [{"role": "user", "parts": [{"video": {"url"}}, {"text"}]}, ...]}
            -> POST /generate -> Output, PromptReport

Local files travel as data: addresses, for a server reads no paths of others.
"""

from __future__ import annotations

import base64
import contextlib
import json
import mimetypes
import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmserve.batch.calling import called, check
from mmserve.batch.replies import ANSWER_ERRORS, parse_reply
from mmserve.batch.values import SAMPLING
from mmserve.core import (
    Aborted,
    BackendFailed,
    Constraint,
    ImagePart,
    MediaRefused,
    MediaSource,
    Output,
    PathSource,
    PromptReport,
    Request,
    TextPart,
    Turn,
    UnsupportedByBackend,
    UrlSource,
    VideoPart,
)

if TYPE_CHECKING:
    pass

__all__ = ["Endpoint", "EndpointTicket", "data_address"]

_CONNECT_S = 10.0
_ANSWER_S = 600.0
_ABORT_S = 5.0
_MAX_KEPT_FILES = 4


class EndpointTicket:
    """A question under way at a server; what `read_answer` needs of a `core.ports.Ticket`."""

    def __init__(
        self,
        request_id: str,
        reply: Future[tuple[Output, PromptReport]],
        abort: Callable[[], None],
    ) -> None:
        self.request_id = request_id
        self._reply = reply
        self._abort = abort

    def report(self, timeout_s: float | None = None) -> PromptReport:
        """Frames taken, without the prompt's tokens; waits for the whole answer."""
        return self._result(timeout_s)[1]

    def outputs(self) -> Iterator[Output]:
        """The whole answer at once. Raises the server's error."""
        yield self._result(None)[0]

    def cancel(self) -> None:
        """Tell the server, if it has the question and has not answered. Idempotent."""
        if not self._reply.cancel() and not self._reply.done():
            self._abort()

    def _result(self, timeout_s: float | None) -> tuple[Output, PromptReport]:
        try:
            return self._reply.result(timeout_s)
        except CancelledError:
            raise Aborted("the question was cancelled") from None


class Endpoint:
    """The native route of a server, used from one thread; close it, or use it in a `with`.

    Args:
        url: `http://host:port`.
        api_key: sent as a bearer token.
        concurrency: calls open at once.

    Raises BackendFailed if no server is ready there.
    """

    def __init__(self, url: str, api_key: str | None = None, *, concurrency: int = 32) -> None:
        import httpx  # noqa: PLC0415 - takes 0.1 s, and runs without a server do without

        self._url = url.rstrip("/")
        self._run_id = uuid.uuid4().hex[:12]
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=concurrency),
            trust_env=False,
        )
        self._errors: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="mmserve-batch")
        self._files: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()
        try:
            check(
                called(
                    self._url,
                    self._errors,
                    lambda: self._http.get("/health", timeout=_CONNECT_S),
                )
            )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Wait for calls under way and close the connections. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._http.close()

    def submit(self, request: Request) -> EndpointTicket:
        """Hand a question in; a refusal is raised by the ticket."""
        own = replace(request, request_id=f"{self._run_id}-{request.request_id}")
        reply = self._pool.submit(self._answer, own)
        return EndpointTicket(request.request_id, reply, lambda: self._abort(own.request_id))

    def _answer(self, request: Request) -> tuple[Output, PromptReport]:
        body = self._body(request)
        response = called(
            self._url, self._errors, lambda: self._http.post("/generate", json=body)
        )
        check(response)
        try:
            return parse_reply(response.json(), request.request_id)
        except ANSWER_ERRORS as error:
            message = f"{self._url} answered in another form: {type(error).__name__}"
            raise BackendFailed(message, status=response.status_code) from error

    def _abort(self, request_id: str) -> None:
        with contextlib.suppress(*self._errors):
            self._http.post("/abort_request", json={"rid": request_id}, timeout=_ABORT_S)

    # --- the body ----------------------------------------------------------------------------

    def _body(self, request: Request) -> dict[str, Any]:
        sampling = request.sampling
        values: dict[str, Any] = {
            "max_new_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.constraint is not None:
            values |= _constraint(sampling.constraint)
        parts = [self._part(part) for part in request.parts]
        return {"rid": request.request_id, "parts": parts, "sampling_params": values}

    def _part(self, part: object) -> dict[str, Any]:
        match part:
            case TextPart(text):
                return {"text": text}
            case ImagePart(source):
                return {"image": self._address(source)}
            case VideoPart(source):
                given = {name: getattr(part, name) for name in SAMPLING}
                options = {
                    name: value for name, value in given.items() if value not in (None, False)
                }
                return {"video": {"url": self._address(source), **options}}
            case Turn(role, parts, is_open):
                inner = [self._part(piece) for piece in parts]
                return {"role": role, "parts": inner, "open": is_open}
        kind = type(part).__name__
        raise UnsupportedByBackend(f"{kind} over HTTP", parameter=kind, backend=self._url)

    def _address(self, source: MediaSource) -> str:
        match source:
            case UrlSource(url):
                return url
            case PathSource(path):
                return self._file(path)
        kind = type(source).__name__
        raise UnsupportedByBackend(f"{kind} over HTTP", parameter=kind, backend=self._url)

    def _file(self, path: str) -> str:
        """The file as a data: address; the last few are kept for a row's other questions."""
        with self._lock:
            if path not in self._files:
                self._files[path] = data_address(path)
                if len(self._files) > _MAX_KEPT_FILES:
                    self._files.popitem(last=False)
            self._files.move_to_end(path)
            return self._files[path]


def _constraint(constraint: Constraint) -> dict[str, Any]:
    is_list = constraint.kind == "choices"
    return {constraint.kind: json.loads(constraint.value) if is_list else constraint.value}


def data_address(path: str) -> str:
    """A local file as a data: address. Raises MediaRefused. Cost: reads the file."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MediaRefused(f"{path}: {reason}", reason="fetch_failed") from error
    if not content:
        raise MediaRefused(f"{path}: the file is empty", reason="undecodable")
    kind = mimetypes.guess_type(path)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
