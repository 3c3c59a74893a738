"""JSON read strictly: each name once, no NaN, and every fault a sentence."""

from __future__ import annotations

import json
from typing import Any, NoReturn

from mmserve.batch.values import Fault, shown

__all__ = ["canonical", "json_object", "json_value"]


def json_value(text: str) -> Any:  # noqa: ANN401
    """What `text` spells, each name of an object once. Pure. Raises Fault."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Fault(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise Fault("not a row: nested too deep") from None
    except Fault:
        raise
    except ValueError:  # a number with more digits than Python converts
        raise Fault("not a row: a number has too many digits") from None


def json_object(content: bytes) -> dict[str, Any]:
    """The object that a line spells, each name once. Pure. Raises Fault."""
    try:
        value = json_value(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Fault(f"not UTF-8 at byte {error.start + 1}") from None
    if not isinstance(value, dict):
        raise Fault(
            f"a row is a JSON object with video or images and question, not {shown(value)}"
        )
    return value


def canonical(value: object) -> bytes:
    """`value` as JSON in UTF-8 without spaces; half a surrogate pair stays an escape. Pure."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Fault(f"field {shown(twice)} is given twice")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise Fault(f"not JSON: {name} is no JSON number")
