"""One call through the client package of a black-box API: a thread receives, a reader takes.

    thread   produce(call) -> stream -> Output, Output ..     reader   outputs()
                                ^ cut by cancel()                      told at once by cancel()

Errors of `openai`, `anthropic` and `litellm` are known by what they share: class names, a
`status_code`, a `response`, a `body`. So none of these packages is imported here.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mmserve.core import (
    Aborted,
    BackendFailed,
    CallTimeout,
    MmserveError,
    Output,
)
from mmserve.core.wire import error_from
from mmserve.lang.backends.news import News

__all__ = ["ApiCall", "api_error", "api_errors"]

_AGAIN = frozenset({408, 409, 429})
_REFUSED = 400
_SERVER_FAULT = 500
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_LONGEST_WAIT_S = 60.0  # a server that asks for more is not waited for
_DENIED = (401, 403)
_SAME_WORDS = {"context_length_exceeded": "context_too_long"}

_Stream = TypeVar("_Stream")


class ApiCall:
    """A request under way at an API. Mutable; outputs are read once, by one reader.

    Args:
        produce: makes the outputs, in this call's own thread. It gets the call, opens its
            stream by `open`, and may raise the client package's errors.
        service: what answers, for messages.
    """

    def __init__(self, produce: Callable[[ApiCall], Iterator[Output]], service: str) -> None:
        self._produce = produce
        self._service = service
        self._news = News()
        self._cancelled = threading.Event()
        self._has_ended = False
        self._lock = threading.Lock()
        self._stream: Any = None
        threading.Thread(target=self._receive, name="mmserve-api", daemon=True).start()

    @property
    def is_cancelled(self) -> bool:
        """Whether nobody wants more outputs."""
        return self._cancelled.is_set()

    def outputs(self) -> Iterator[Output]:
        """Outputs as they come. Raises the API's error, or Aborted after `cancel`."""
        return self._news.read()

    def cancel(self) -> None:
        """Tell the reader at once and cut the stream, if there is one yet. Idempotent.

        A request that has no response yet ends as soon as it has one; none is sent again.
        """
        if self.is_cancelled or self._has_ended:
            return
        self._cancelled.set()
        self._news.put(Aborted("the call was cancelled"))
        with self._lock:
            _cut(self._stream)

    @contextlib.contextmanager
    def open(self, post: Callable[[], _Stream], num_retries: int = 0) -> Iterator[_Stream]:
        """The stream that `post` gives, closed at the end of the block.

        After an error that may pass, and before any piece has come, `post` is called again, at
        most `num_retries` times, and never after `cancel`. For `produce` only. Raises Aborted
        after `cancel`, and what `post` raises.
        """
        stream: Any = self._persevere(post, num_retries)
        with self._lock:
            self._stream = stream
        try:
            self._check()
            yield stream
        finally:
            with self._lock:
                self._stream = None
            close = getattr(stream, "close", None)
            if close is not None:
                with contextlib.suppress(Exception):  # a cut stream need not close well
                    close()

    def _persevere(self, post: Callable[[], _Stream], num_retries: int) -> _Stream:
        for number in range(num_retries):
            self._check()
            try:
                return post()
            except Exception as error:
                pause_s = _pause_s(error, number)
                if pause_s is None or self._cancelled.wait(pause_s):
                    raise
        self._check()
        return post()

    def _check(self) -> None:
        if self.is_cancelled:
            message = "the call was cancelled"
            raise Aborted(message)

    def _receive(self) -> None:
        try:
            with api_errors(self._service):
                self._pass_on(self._produce(self))
            self._news.put(None)
        except MmserveError as error:
            self._news.put(error)
        finally:
            self._has_ended = True

    def _pass_on(self, outputs: Iterator[Output]) -> None:
        try:
            for output in outputs:
                self._check()
                self._news.put(output)
        finally:
            close = getattr(outputs, "close", None)
            if close is not None:
                close()  # a generator leaves its `open` block


@contextlib.contextmanager
def api_errors(service: str) -> Iterator[None]:
    """Turn whatever is raised inside into errors of the house."""
    try:
        yield
    except MmserveError:
        raise
    except Exception as error:  # client packages raise what they like
        raise api_error(error, service) from error


def api_error(error: Exception, service: str) -> MmserveError:
    """The error that an API client's error stands for. Pure."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    status = getattr(error, "status_code", None)
    if kinds & {"APITimeoutError", "Timeout", "TimeoutException"}:
        return CallTimeout(f"{service} was silent for too long: {error}")
    if kinds & {"APIConnectionError", "ConnectError", "ConnectTimeout"}:
        reason = error.__cause__ or error
        message = f"the connection to {service} failed: {reason}"
        return BackendFailed(message, status=None, hint="is the server running?")
    if "APIError" in kinds or isinstance(status, int):
        is_refused = isinstance(status, int) and status >= _REFUSED  # else told by a stream
        return _told(error, status if is_refused else None, service)
    message = f"the call to {service} failed: {type(error).__name__} {error}"
    return BackendFailed(message, status=None)


def _told(error: Exception, status: int | None, service: str) -> MmserveError:
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    told: dict[str, Any] = dict(inner) if isinstance(inner, dict) else {}
    told["message"] = told.get("message") or str(error) or f"{service} gave no reason"
    told["code"] = _SAME_WORDS.get(str(told.get("code")), told.get("code"))
    if status in _DENIED:
        message = f"{service} denied the call: {told['message']}"
        return BackendFailed(message, status=status, hint="check the API key")
    return error_from(status, {"error": told}, _header(error, "retry-after"))


def _header(error: Exception, name: str) -> str | None:
    headers: Any = getattr(getattr(error, "response", None), "headers", None)
    value = headers.get(name) if hasattr(headers, "get") else None
    return value if isinstance(value, str) else None


def _pause_s(error: Exception, number: int) -> float | None:
    """Seconds until another try, or None if there is no use in one."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        if not any(kind.__name__ == "APIConnectionError" for kind in type(error).__mro__):
            return None
    elif status not in _AGAIN and status < _SERVER_FAULT:
        return None
    told = _header(error, "retry-after")
    if told is not None and told.isdigit():
        return float(told) if int(told) <= _LONGEST_WAIT_S else None
    pause_s = min(_FIRST_PAUSE_S * 2.0**number, _LONGEST_PAUSE_S)
    return pause_s * random.uniform(0.75, 1.0)


def _cut(stream: object) -> None:
    """Shut down the connection, so that the thread that waits for it wakes up."""
    response = getattr(stream, "response", None)
    extensions = getattr(response, "extensions", None) or {}
    network = extensions.get("network_stream")
    is_shared = extensions.get("http_version") == b"HTTP/2"
    if network is None or is_shared or getattr(response, "is_closed", False):
        return  # a connection given back may serve another call by now
    with contextlib.suppress(Exception):  # it may have ended by itself
        connection = network.get_extra_info("socket")
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
