"""A request body: bounded in size and time, as JSON strictly valid and of whole characters."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, NoReturn

from fastapi import Request as HttpRequest
from starlette.requests import ClientDisconnect

from mmserve.core import Aborted, BadRequest
from mmserve.server.errors import body_too_large, body_too_slow
from mmserve.server.fields import shown

__all__ = ["BodyLimits", "parse_json", "read_bytes", "read_json"]

_THREAD_ABOVE_BYTES = 1 << 18
_LEAST_BYTES_PER_S = 1 << 14
_MAX_DEPTH = 256


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large a body may be, and how long it may take beside a second for each 16 KiB."""

    num_bytes: int
    patience_s: float


async def read_json(http: HttpRequest, limits: BodyLimits) -> Any:  # noqa: ANN401 - any JSON value
    """The body's JSON value. Raises as `read_bytes`, and BadRequest."""
    raw = await read_bytes(http, limits)
    if len(raw) > _THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(parse_json, raw)
    return parse_json(raw)


async def read_bytes(http: HttpRequest, limits: BodyLimits) -> bytes:
    """The body as it came.

    A body over the limit is read to its end and thrown away, so that the client gets to see the
    refusal; one over twice the limit is not. Raises the 408 and 413 refusals, BadRequest for a
    packed one, and Aborted if the client leaves before its end.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    try:
        async for piece in _timed(http.stream(), limits.patience_s):
            num_bytes += len(piece)
            if num_bytes <= limits.num_bytes:
                pieces.append(piece)
            elif num_bytes > 2 * limits.num_bytes + _THREAD_ABOVE_BYTES:
                break
    except ClientDisconnect:
        raise Aborted("the client closed the connection") from None
    if num_bytes > limits.num_bytes:
        raise body_too_large(limits.num_bytes)
    _check_plain(http)
    if num_bytes > _THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(b"".join, pieces)
    return b"".join(pieces)


async def _timed(pieces: AsyncIterator[bytes], patience_s: float) -> AsyncIterator[bytes]:
    """The same pieces; the 408 refusal if they come too slowly."""
    started_s, num_bytes = time.monotonic(), 0
    while True:
        spent_s = time.monotonic() - started_s
        left_s = patience_s + num_bytes / _LEAST_BYTES_PER_S - spent_s
        try:
            piece = await asyncio.wait_for(anext(pieces), max(0.0, left_s))
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise body_too_slow(num_bytes, spent_s + left_s) from None
        num_bytes += len(piece)
        yield piece


def _check_plain(http: HttpRequest) -> None:
    encoding = http.headers.get("content-encoding", "identity")
    if encoding.lower() not in ("", "identity"):
        message = f"the request body has the content encoding {shown(encoding)}"
        hint = "send it as it is; this server unpacks none"
        raise BadRequest(message, reason="encoding", hint=hint)


def parse_json(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON value in `raw`. Pure.

    Refuses what Python's parser lets pass: NaN and infinities, numbers beyond a float's range,
    a name twice in one object, halves of surrogate pairs in any string, and more depth than
    those who read or write it later can follow.
    """
    if not raw or raw.isspace():
        raise _invalid("it is empty")
    try:
        text = raw.decode()
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise _invalid(f"byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _invalid(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise _invalid("a number has too many digits") from None
    _check_depth(value)
    if "\\ud" in text or "\\uD" in text:
        _check_text(value)
    return value


def _invalid(reason: str) -> BadRequest:
    return BadRequest(f"the request body is not valid JSON: {reason}", reason="json")


def _too_deep() -> BadRequest:
    return _invalid(f"it is nested deeper than {_MAX_DEPTH}")


def _check_depth(value: object) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise _too_deep()


def _refuse_constant(word: str) -> NoReturn:
    raise _invalid(f"{word} is not a JSON value")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _invalid("a number is beyond the range of a 64-bit float")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise _invalid("an object has the same name twice")
    return fields


def _check_text(value: object) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            reason = f"a string holds half of a character, \\u{ord(value[error.start]):04x}"
            raise _invalid(reason) from None
    elif isinstance(value, list):
        for item in value:
            _check_text(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            _check_text(name)
            _check_text(item)
