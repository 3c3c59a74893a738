"""A request body: bounded, and as JSON strictly valid and of whole characters."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, NoReturn

from fastapi import Request as HttpRequest

from mmserve.core import BadRequest
from mmserve.server.errors import body_too_large

__all__ = ["parse_json", "read_bytes", "read_json"]

_THREAD_ABOVE_BYTES = 1 << 18


async def read_json(http: HttpRequest, limit_bytes: int) -> Any:  # noqa: ANN401 - any JSON value
    """The body's JSON value. Raises the 413 refusal or BadRequest."""
    raw = await read_bytes(http, limit_bytes)
    if len(raw) > _THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(parse_json, raw)
    return parse_json(raw)


async def read_bytes(http: HttpRequest, limit_bytes: int) -> bytes:
    """The body as it came.

    A body over the limit is read to its end and thrown away, so that the client gets to see the
    refusal; one over twice the limit is not. Raises the 413 refusal.
    """
    pieces: list[bytes] = []
    num_bytes = 0
    async for piece in http.stream():
        num_bytes += len(piece)
        if num_bytes <= limit_bytes:
            pieces.append(piece)
        elif num_bytes > 2 * limit_bytes + _THREAD_ABOVE_BYTES:
            break
    if num_bytes > limit_bytes:
        raise body_too_large(limit_bytes)
    if num_bytes > _THREAD_ABOVE_BYTES:
        return await asyncio.to_thread(b"".join, pieces)
    return b"".join(pieces)


def parse_json(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    """The JSON value in `raw`. Pure.

    Refuses what Python's parser lets pass: NaN and infinities, numbers beyond a float's range,
    a name twice in one object, and halves of surrogate pairs in any string.
    """
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
        raise _invalid("it is nested too deeply") from None
    except ValueError:
        raise _invalid("a number has too many digits") from None
    if "\\ud" in text or "\\uD" in text:
        _check_text(value)
    return value


def _invalid(reason: str) -> BadRequest:
    return BadRequest(f"the request body is not valid JSON: {reason}", reason="json")


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
