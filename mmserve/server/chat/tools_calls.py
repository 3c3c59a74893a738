"""An answer under way as what the chat API tells of it: content, or calls of tools.

    news of text -> reader.add -> deltas, as a stream sends them -> joined -> the whole message

A call's first delta has its id and name; the pieces of its arguments follow as they come.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import Any, Protocol

from mmserve.core import Finish

__all__ = [
    "AnswerReader",
    "CallReader",
    "NamedReader",
    "TextReader",
    "call_begin",
    "call_more",
    "message_of",
]

Delta = dict[str, Any]
_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"\s*,\s*"arguments"\s*:\s*')


class AnswerReader(Protocol):
    """Reads one answer from its beginning to its end. Mutable; one for each answer."""

    has_calls: bool
    """Whether its kind of answer may hold calls, so that content begins as null."""

    def add(self, piece: str) -> list[Delta]:
        """What more text changes. Changes: the state."""
        ...

    def end(self) -> list[Delta]:
        """What was held back until now. Changes: the state."""
        ...

    def reason(self, finish: Finish) -> str:
        """OpenAI's word for the end. Pure."""
        ...


class TextReader:
    """An answer that is text."""

    has_calls = False

    def add(self, piece: str) -> list[Delta]:
        """The text itself."""
        return [{"content": piece}] if piece else []

    def end(self) -> list[Delta]:
        """Nothing."""
        return []

    def reason(self, finish: Finish) -> str:
        """The engine's own word."""
        return finish.reason


class NamedReader:
    """An answer that is the arguments of one function, chosen by the client."""

    has_calls = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = False

    def add(self, piece: str) -> list[Delta]:
        """Arguments, behind the call's beginning. Changes: the state."""
        if not piece:
            return []
        begin = [] if self._has_begun else [call_begin(0, self._name)]
        self._has_begun = True
        return [*begin, call_more(0, piece)]

    def end(self) -> list[Delta]:
        """Nothing."""
        return []

    def reason(self, finish: Finish) -> str:
        """As OpenAI has it: a call that the client named ends with "stop"."""
        return finish.reason


class CallReader:
    """An answer that is one call, `{"name": ..., "arguments": {...}}`, perhaps cut off."""

    has_calls = True

    def __init__(self) -> None:
        self._head = ""
        self._arguments: _ObjectText | None = None

    def add(self, piece: str) -> list[Delta]:
        """The call's beginning as soon as its name is known, then arguments.

        Changes: the state.
        """
        deltas: list[Delta] = []
        if self._arguments is None:
            self._head += piece
            found = _HEAD.match(self._head)
            if found is None:
                return []
            self._arguments = _ObjectText()
            deltas, piece = [call_begin(0, found[1])], self._head[found.end() :]
        more = self._arguments.take(piece)
        return [*deltas, call_more(0, more)] if more else deltas

    def end(self) -> list[Delta]:
        """Nothing: a call without its name is no call."""
        return []

    def reason(self, finish: Finish) -> str:
        """OpenAI's word for an end with calls, if the call is complete. Pure."""
        is_whole = self._arguments is not None and self._arguments.is_complete
        return "tool_calls" if is_whole and finish.reason == "stop" else finish.reason


class _ObjectText:
    """Finds the end of a JSON object in text that goes on behind it."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_string = False
        self._is_escaped = False
        self.is_complete = False

    def take(self, piece: str) -> str:
        """The part of more text that belongs to the object. Changes: the state."""
        if self._depth == 0 and not self.is_complete:
            piece = piece.lstrip()
        for place, character in enumerate(piece):
            if self.is_complete:
                return piece[:place]
            self._step(character)
        return piece

    def _step(self, character: str) -> None:
        if self._is_string:
            if self._is_escaped:
                self._is_escaped = False
            else:
                self._is_escaped = character == "\\"
                self._is_string = character != '"'
        elif character == '"':
            self._is_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_complete = self._depth == 0


def call_begin(index: int, name: str) -> Delta:
    """The first delta of a call: a new id, its name, and no arguments yet."""
    function = {"name": name, "arguments": ""}
    call_id = f"call_{uuid.uuid4().hex[:24]}"
    call = {"index": index, "id": call_id, "type": "function", "function": function}
    return {"tool_calls": [call]}


def call_more(index: int, arguments: str) -> Delta:
    """A piece of a call's arguments. Pure."""
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def message_of(deltas: Iterable[Delta], *, is_text: bool) -> dict[str, Any]:
    """The whole message that these deltas join to. Pure.

    Without `is_text` the content is null as long as there is none.
    """
    content: str | None = "" if is_text else None
    calls: list[dict[str, Any]] = []
    for delta in deltas:
        content = (content or "") + delta["content"] if "content" in delta else content
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                begun = {name: call[name] for name in ("id", "type")}
                calls.append({**begun, "function": dict(call["function"])})
            else:
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    return {**message, "tool_calls": calls} if calls else message
