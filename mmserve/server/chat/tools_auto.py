"""Calls in an answer that may be anything.

The whole answer must be calls of known tools, in one of the forms that chat templates teach:

    <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>    one or more
    {"name": "weather", "arguments": {"city": "Oslo"}}                           or a list

`parameters` may stand for `arguments`. Anything else is text. Of a stream, text that may still
become a call is held back until that is decided.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from mmserve.core import Finish
from mmserve.server.chat.tools_calls import call_begin, call_more

__all__ = ["FreeReader", "may_be_calls", "read_calls"]

_TAG = "<tool_call>"
_TAGGED = re.compile(r"\s*<tool_call>(.*?)</tool_call>\s*", re.DOTALL)
_BLANK = re.compile(r"\s+")
_LONGEST_HEAD = 200
"""Characters within which a call has told its name: the name has at most 64."""


class FreeReader:
    """Reads an answer of a model that may call tools or not. Mutable."""

    has_calls = True

    def __init__(self, names: Sequence[str], *, is_parallel: bool) -> None:
        self._names = tuple(names)
        self._is_parallel = is_parallel
        self._held = ""
        self._is_text = False
        self._has_called = False

    def add(self, piece: str) -> list[dict[str, Any]]:
        """Text, as soon as it cannot become a call. Changes: the state."""
        self._held += piece
        if not self._is_text and may_be_calls(self._held, self._names):
            return []
        self._is_text = True
        text, self._held = self._held, ""
        return [{"content": text}] if text else []

    def end(self) -> list[dict[str, Any]]:
        """The calls, if the whole answer is calls; of several not parallel ones, the first.

        Changes: the state.
        """
        calls = [] if self._is_text else read_calls(self._held, self._names)
        if not calls:
            return [{"content": self._held}] if not self._is_text else []
        self._has_called = True
        kept = calls if self._is_parallel else calls[:1]
        return [
            delta
            for index, (name, arguments) in enumerate(kept)
            for delta in (call_begin(index, name), call_more(index, arguments))
        ]

    def reason(self, finish: Finish) -> str:
        """OpenAI's word for an end with calls, if there are any; known after `end`. Pure."""
        return "tool_calls" if self._has_called and finish.reason == "stop" else finish.reason


def may_be_calls(text: str, names: Sequence[str]) -> bool:
    """Whether an answer that begins so may turn out to be calls. Pure."""
    begun = _BLANK.sub("", text[:_LONGEST_HEAD])
    heads = [_TAG, *(f'{bracket}{{"name":"{name}"' for name in names for bracket in ("", "["))]
    return any(begun.startswith(head) or head.startswith(begun) for head in heads)


def read_calls(text: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """(name, arguments as JSON text) of each call; empty if the text is not all calls. Pure."""
    try:
        found = [_read_call(value, names) for value in _values(text)]
    except (ValueError, RecursionError):
        return []
    calls = [call for call in found if call is not None]
    return calls if len(calls) == len(found) else []


def _values(text: str) -> list[Any]:
    """The JSON values that would be calls. Raises ValueError."""
    if not text.lstrip().startswith(_TAG):
        value = json.loads(text)
        return value if isinstance(value, list) else [value]
    values, place = [], 0
    while place < len(text):
        match = _TAGGED.match(text, place)
        if match is None:
            return []
        values.append(json.loads(match[1]))
        place = match.end()
    return values


def _read_call(value: Any, names: Sequence[str]) -> tuple[str, str] | None:  # noqa: ANN401
    if not isinstance(value, dict) or value.get("name") not in names:
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, dict):
        return None
    return value["name"], json.dumps(arguments, ensure_ascii=False)
