"""Errors as HTTP answers: the only place in the house that knows status codes.

A class of `core.errors` has a status in `STATUS`, or its nearest parent does. Everything that
leaves the server as an error passes through `error_object`, which bounds what it can repeat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    Broken,
    Busy,
    CallTimeout,
    ConstraintRefused,
    ContextTooLong,
    EngineDown,
    LedgerBroken,
    MediaRefused,
    MissingExtra,
    MmserveError,
    ModelRefused,
    NotFound,
    ProgramMisuse,
    RequestRefused,
    RunnerFailed,
    UnknownVariable,
    UnsupportedByBackend,
    UnsupportedModel,
    WeightMismatch,
)

__all__ = [
    "ANSWERS",
    "ANTHROPIC_ID_HEADER",
    "STATUS",
    "admin_only",
    "anthropic_error",
    "body_too_large",
    "body_too_slow",
    "client_full",
    "cross_site",
    "error_object",
    "error_response",
    "file_too_large",
    "is_anthropic",
    "key_missing",
    "not_ready",
    "server_full",
    "shutting_down",
    "status_of",
]

STATUS: Mapping[type[MmserveError], int] = {
    MmserveError: 500,
    RequestRefused: 400,
    BadRequest: 400,
    ContextTooLong: 400,
    MediaRefused: 400,
    ConstraintRefused: 400,
    UnsupportedByBackend: 400,
    ProgramMisuse: 400,
    NotFound: 404,
    Busy: 429,
    EngineDown: 503,
    Aborted: 499,
    CallTimeout: 504,
    BackendFailed: 502,
    UnknownVariable: 500,
    ModelRefused: 500,
    UnsupportedModel: 500,
    WeightMismatch: 500,
    MissingExtra: 500,
    Broken: 500,
    LedgerBroken: 500,
    RunnerFailed: 500,
}

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    499: "request_aborted",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_ANTHROPIC_PATH = "/v1/messages"
ANTHROPIC_ID_HEADER = "request-id"
"""Where Anthropic's clients look for a request's id."""
_ROUTING = {
    404: ("there is no such route", "not_found"),
    405: ("the route does not take this method", "method_not_allowed"),
}
ANSWERS: Mapping[str, tuple[int, str]] = {
    "ok": (200, "The answer."),
    "bad": (400, "The request cannot be served as it is; `param` names the field at fault."),
    "key": (401, "The API key is missing or wrong."),
    "admin": (403, "The route is the operator's."),
    "absent": (404, "What the request names is not there."),
    "slow": (408, "The body came too slowly, or not at all."),
    "large": (413, "The body, or the file in it, is larger than the limit."),
    "busy": (429, "Too many requests are under way or wait; `Retry-After` says when to try."),
    "left": (499, "The client closed the connection; nobody sees this."),
    "failed": (500, "The server failed; its log says more."),
    "behind": (502, "A server behind this one failed."),
    "stopping": (503, "The server is not ready, or shuts down."),
    "late": (504, "The answer did not come in time."),
}
"""Statuses by the word that descriptions of routes use for them, and what each means."""

_OUR_FAULT = "the server failed; its log says more"
_MAX_MESSAGE = 300
_MAX_RUN = 80
_QUERY = re.compile(r"(https?://[^\s?#]*)[?#]\S*")
_LONG_RUN = re.compile(rf"\S{{{_MAX_RUN},}}")


def status_of(error: Exception) -> int:
    """HTTP status of any exception; 500 for those that are not ours. Pure."""
    if isinstance(error, HTTPException):
        return error.status_code
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def error_object(error: Exception) -> dict[str, Any]:
    """The `{"error": ...}` body of any exception.

    The message has at most 300 characters, masks query strings, cuts unbroken runs of 80
    characters, and says nothing of what went wrong inside. Pure.
    """
    status = status_of(error)
    message, code, param = _OUR_FAULT, "internal_error", None
    if isinstance(error, Broken):
        code = error.code
    elif isinstance(error, MmserveError):
        message, code, param = _message_of(error), error.code, error.param
    elif isinstance(error, HTTPException):
        message, code = _split_detail(error)
    kind = _TYPES.get(status, "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def anthropic_error(error: Exception) -> dict[str, Any]:
    """The same in the form of Anthropic's API, which has no place for param and code. Pure."""
    kind = _ANTHROPIC_TYPES.get(status_of(error), "api_error")
    message = error_object(error)["error"]["message"]
    return {"type": "error", "error": {"type": kind, "message": message}}


def is_anthropic(path: str) -> bool:
    """Whether errors of this path have the form of Anthropic's API. Pure."""
    return path == _ANTHROPIC_PATH or path.startswith(f"{_ANTHROPIC_PATH}/")


def error_response(error: Exception, path: str = "", shown_id: str = "") -> JSONResponse:
    """The whole answer to a failed request; `Retry-After` where trying later helps. Pure.

    The form is Anthropic's if `path` is one of its routes; that tells the request's id, too.
    """
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        headers.update(error.headers or {})
    if isinstance(error, Busy | EngineDown):
        seconds = error.fields.get("retry_after_s")
        wait = seconds if isinstance(seconds, int | float) else 1
        headers["Retry-After"] = str(max(1, round(wait)))
    body = error_object(error)
    if is_anthropic(path):
        body = {**anthropic_error(error), "request_id": shown_id or None}
    return JSONResponse(body, status_of(error), headers)


def key_missing() -> HTTPException:
    """The refusal of a request without the right API key. Pure."""
    detail: Any = {
        "message": "the API key is missing or wrong. hint: send 'Authorization: Bearer KEY'",
        "code": "invalid_api_key",
    }
    return HTTPException(401, detail, {"WWW-Authenticate": "Bearer"})


def admin_only() -> HTTPException:
    """The refusal of an operator's route to somebody else. Pure."""
    message = "this is for the operator of the server alone"
    hint = "send the --admin-key, or --api-key where no --admin-key is set"
    return HTTPException(403, _detail("admin_only", message, hint))


def cross_site() -> HTTPException:
    """The refusal of an operator's route to a web page of somebody else. Pure."""
    message = "a web page of another site asked for this, without a key"
    return HTTPException(403, _detail("cross_site", message, "start with --admin-key"))


def server_full(limit: int) -> HTTPException:
    """The refusal of a request beyond `max_open_requests`. Pure."""
    message = f"{limit} requests are under way, which is the limit"
    hint = "try again, or start the server with --max-open-requests"
    return HTTPException(429, _detail("server_full", message, hint), {"Retry-After": "1"})


def client_full(limit: int) -> HTTPException:
    """The refusal of a request beyond `max_client_requests`. Pure."""
    message = f"{limit} requests of this client are under way, which is its limit"
    hint = "wait until one has ended"
    return HTTPException(429, _detail("client_full", message, hint), {"Retry-After": "1"})


def body_too_large(limit_bytes: int) -> HTTPException:
    """The refusal of a body over `limit_bytes`. Pure."""
    message = f"the request body is larger than the limit of {limit_bytes} bytes"
    detail: Any = {"message": message, "code": "body_too_large"}
    return HTTPException(413, detail)


def body_too_slow(num_bytes: int, waited_s: float) -> HTTPException:
    """The refusal of a body that does not come, after which the connection is closed. Pure."""
    message = f"after {waited_s:.0f} s there are {num_bytes} bytes of the request body"
    hint = "send it faster, or start the server with a longer --body-timeout-s"
    return HTTPException(408, _detail("body_too_slow", message, hint), {"Connection": "close"})


def file_too_large(num_bytes: int, limit_bytes: int) -> HTTPException:
    """The refusal of a file that the whole store has no room for. Pure."""
    message = f"the file has {num_bytes} bytes, this server keeps {limit_bytes} of all files"
    hint = "send the content with each request, or start the server with --max-file-store-bytes"
    detail: Any = {"message": f"{message}. hint: {hint}", "code": "file_too_large"}
    return HTTPException(413, detail)


def shutting_down() -> HTTPException:
    """The end of a request that the server leaves unfinished because it stops. Pure."""
    detail: Any = {"message": "the server is shutting down", "code": "shutting_down"}
    return HTTPException(503, detail, {"Retry-After": "1"})


def not_ready(error: Exception) -> JSONResponse:
    """The answer of a health route while the engine cannot serve, whatever the reason. Pure."""
    return JSONResponse(error_object(error), 503, {"Retry-After": "1"})


def _detail(code: str, message: str, hint: str) -> Any:  # noqa: ANN401 - starlette says str
    return {"message": f"{message}. hint: {hint}", "code": code}


def _message_of(error: MmserveError) -> str:
    text = _QUERY.sub(r"\1?...", str(error))
    text = _LONG_RUN.sub(lambda run: run.group()[:40] + "...", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def _split_detail(error: HTTPException) -> tuple[str, str]:
    detail: object = error.detail
    if isinstance(detail, dict):
        return str(detail["message"]), str(detail["code"])
    return _ROUTING.get(error.status_code, (str(detail)[:_MAX_MESSAGE], "http_error"))
