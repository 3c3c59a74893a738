"""One line of a drift file -> a checked prompt, and the body that asks it.

    {"task": "count", "prompt": "How many?", "images": ["a.png"], "max_tokens": 8}
    {"task": "chat", "messages": [{"role": "user", "content": "Hello"}], "regex": "[a-z]+"}

Reading is strict, as that of batch rows is: a row asked under other settings than its writer
meant would be compared all the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.batch.asks import media_source
from mmserve.batch.json_text import json_object
from mmserve.batch.remote import data_address
from mmserve.batch.row import RowFault
from mmserve.batch.values import CHECKS, CONSTRAINTS, SAMPLING, Fault, shown
from mmserve.core import PathSource, UrlSource

__all__ = ["DEFAULT_TASK", "FIELDS", "Ask", "parse_ask"]

DEFAULT_TASK = "all"
"""The task of rows that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One prompt, as both sides are asked it.

    Args:
        line: its line in the file, counted from 1.
        row_id: the caller's own id, or `line-<n>`.
        task: what its flips are counted under.
        messages: of the chat API, as the row has them; media are not in them yet.
        images: paths or addresses of pictures, put before the last user message's words.
        video: path or address of a clip, put likewise.
        frames: how to sample the clip; empty where the row is silent.
        max_tokens: None where the row is silent.
        constraint: (kind, value) as the row has it.
    """

    line: int
    row_id: str | int
    task: str
    messages: tuple[Mapping[str, Any], ...]
    images: tuple[str, ...] = ()
    video: str | None = None
    frames: Mapping[str, Any]
    max_tokens: int | None = None
    constraint: tuple[str, Any] | None = None

    def body(self, default_max_tokens: int) -> dict[str, Any]:
        """What this prompt adds to the body of a chat call.

        Raises MediaRefused for a local file that cannot be read. Cost: reads local files.
        """
        most = default_max_tokens if self.max_tokens is None else self.max_tokens
        body: dict[str, Any] = {"messages": self._with_media(), "max_tokens": most}
        return body | _constraint(self.constraint)

    def _with_media(self) -> list[dict[str, Any]]:
        messages = [dict(message) for message in self.messages]
        parts = [_picture(place) for place in self.images]
        if self.video is not None:
            parts.append(_clip(self.video, self.frames))
        if parts:
            last = next(one for one in reversed(messages) if one.get("role") == "user")
            last["content"] = [*parts, *_parts_of(last.get("content"))]
        return messages


def _picture(place: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": _address(place)}}


def _clip(place: str, frames: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "video_url", "video_url": {"url": _address(place), **frames}}


def _address(place: str) -> str:
    match media_source(place):
        case UrlSource(url):
            return url
        case PathSource(path):
            return data_address(path)
    raise AssertionError("unreachable: a place is a path or an address")


def _parts_of(content: object) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _constraint(constraint: tuple[str, Any] | None) -> dict[str, Any]:
    """A schema in OpenAI's own form, so that any endpoint can honour it; others are ours."""
    if constraint is None:
        return {}
    kind, value = constraint
    if kind != "json_schema":
        return {kind: value}
    named = {"name": "answer", "schema": value, "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


# --- reading ---------------------------------------------------------------------------------


def _messages(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise Fault(f"must be a list of at least one message, not {shown(value)}")
    for at, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise Fault(f"entry {at} must be an object with a role, not {shown(message)}")
    return tuple(value)


_TAKEN = ("id", "images", "video", *SAMPLING, "max_tokens", *CONSTRAINTS)
FIELDS: Mapping[str, Callable[[object], Any]] = {
    "task": CHECKS["regex"],  # any text that is not empty
    "prompt": CHECKS["regex"],
    "messages": _messages,
    **{name: CHECKS[name] for name in _TAKEN},
}
"""What a row may have, with the check of each."""


def parse_ask(line: int, content: bytes) -> Ask | RowFault:
    """The prompt that `content` spells, or what is wrong with it. Pure."""
    try:
        fields = json_object(content)
    except Fault as fault:
        return _fault(line, None, [str(fault)])
    faults: list[str] = []
    values: dict[str, Any] = {}
    for name, value in fields.items():
        if name not in FIELDS:
            known = ", ".join(FIELDS)
            faults.append(f"unknown field {shown(name)}; known are {known}")
        elif value is not None:
            try:
                values[name] = FIELDS[name](value)
            except Fault as fault:
                faults.append(f"{name} {fault}")
    row_id = values.get("id")
    faults += _conflicts(fields, values)
    if faults:
        return _fault(line, row_id, faults)
    return _ask(line, values)


def _ask(line: int, values: Mapping[str, Any]) -> Ask:
    kind = next((name for name in CONSTRAINTS if name in values), None)
    value = None if kind is None else values[kind]
    if kind == "json_schema":
        value = json.loads(str(value))
    elif kind == "choices":
        value = list(value or ())
    row_id = values.get("id")
    messages = values.get("messages") or ({"role": "user", "content": values["prompt"]},)
    return Ask(
        line=line,
        row_id=f"line-{line}" if row_id is None else row_id,
        task=values.get("task", DEFAULT_TASK),
        messages=messages,
        images=values.get("images", ()),
        video=values.get("video"),
        frames={name: values[name] for name in SAMPLING if name in values},
        max_tokens=values.get("max_tokens"),
        constraint=None if kind is None else (kind, value),
    )


def _conflicts(fields: Mapping[str, Any], values: Mapping[str, Any]) -> list[str]:
    given = {name for name, value in fields.items() if value is not None}
    found = []
    asked = given & {"prompt", "messages"}
    if len(asked) != 1:
        state = "prompt and messages are both given" if asked else "prompt is missing"
        found.append(f"{state}, give prompt or messages")
    kinds = [name for name in CONSTRAINTS if name in given]
    if len(kinds) > 1:
        found.append(f"{' and '.join(kinds)} are both given, give one")
    if "video" not in given:
        found += [
            f"{name} is for a video, the row has none" for name in SAMPLING if name in given
        ]
    roles = [message["role"] for message in values.get("messages", ())]
    if roles and "user" not in roles and given & {"images", "video"}:
        found.append("messages has no user message for the pictures to stand in")
    return found


def _fault(line: int, row_id: str | int | None, faults: list[str]) -> RowFault:
    return RowFault(
        line=line,
        row_id=f"line-{line}" if row_id is None else row_id,
        questions=(None,),
        message=f"line {line}: {'; '.join(faults)}",
    )
