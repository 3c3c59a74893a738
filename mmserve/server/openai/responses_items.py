"""Items of the Responses API as turns, and as they are listed again.

    message                               a turn
    function_call, function_call          in the assistant's turn before, or one of their own
    function_call_output                  a tool's turn that names its call

An item is listed with an id, its own or a new one, and in the form that can be sent again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from mmserve.core import BadRequest, TextPart, ToolCall, Turn
from mmserve.server.chat.messages import (
    READERS,
    ContentPart,
    PartReader,
    call_arguments,
    parts_of,
)
from mmserve.server.chat.tools import tool_name
from mmserve.server.fields import Body, anything, list_of, short_text, text, word, wrong
from mmserve.server.media import MediaDefaults

__all__ = [
    "ReadItem",
    "Refer",
    "call_item",
    "check_results",
    "items_of",
    "message_item",
    "new_id",
    "text_part",
    "turns_of_items",
]

Refer = Callable[[str, str], Mapping[str, Any]]
"""Takes an item's id and the field that names it; gives the item as listed, or NotFound."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_REFERENCE = "item_reference"
_STATES = word("in_progress", "completed", "incomplete")
_HINTS = {
    "input_file": "send pictures as input_image, clips as video_url, and text as input_text",
}


@dataclass(frozen=True, slots=True)
class ReadItem:
    """An item as what the model is shown, and as it is listed. A call's turn has no parts."""

    turn: Turn
    listed: Mapping[str, Any]


def items_of(
    value: object, name: str, defaults: MediaDefaults, refer: Refer
) -> tuple[ReadItem, ...]:
    """The items of an input; text is a message of the user. Raises BadRequest or NotFound."""
    if isinstance(value, str):
        return (_message(Body({"role": "user", "content": value}, name), defaults),)
    if not isinstance(value, list) or not value:
        raise wrong(name, value, "text, or a list of at least one item")
    return list_of(lambda item, where: _item(item, where, defaults, refer))(value, name)


def turns_of_items(items: Iterable[ReadItem]) -> tuple[Turn, ...]:
    """Their turns; calls stand in the assistant's turn that they follow. Pure."""
    turns: list[Turn] = []
    for item in items:
        is_call = bool(item.turn.tool_calls)
        if is_call and turns and turns[-1].role == "assistant":
            calls = (*turns[-1].tool_calls, *item.turn.tool_calls)
            turns[-1] = replace(turns[-1], tool_calls=calls)
        else:
            turns.append(item.turn)
    return tuple(turns)


def check_results(items: Sequence[ReadItem], name: str, earlier: Collection[Turn]) -> None:
    """Raise BadRequest for a result of a call that is not before it. Pure."""
    known = {call.call_id for turn in earlier for call in turn.tool_calls}
    for number, item in enumerate(items):
        if item.turn.role == "tool" and item.turn.tool_call_id not in known:
            field = f"{name}[{number}].call_id"
            message = f"{field} is the id of no call before it"
            hint = "send the function_call item, too, or previous_response_id"
            raise BadRequest(message, field=field, reason="unknown", hint=hint)
        known.update(call.call_id for call in item.turn.tool_calls)


def new_id(prefix: str) -> str:
    """An id that nobody guesses."""
    return f"{prefix}_{secrets.token_hex(16)}"


def text_part(words: str, logprobs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Text of an answer as a content part. Pure."""
    return {"type": "output_text", "text": words, "annotations": [], "logprobs": logprobs or []}


def message_item(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    """An answer's message. Pure."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def call_item(item_id: str, status: str, call: ToolCall) -> dict[str, Any]:
    """A call of a function. Pure."""
    return {
        "id": item_id,
        "type": "function_call",
        "status": status,
        "call_id": call.call_id,
        "name": call.name,
        "arguments": call.arguments,
    }


def _item(value: object, name: str, defaults: MediaDefaults, refer: Refer) -> ReadItem:
    body = Body(value, name)
    kind = body.take("type", text, "message")
    if kind == _REFERENCE:
        found = body.need("id", lambda item_id, where: refer(text(item_id, where), where))
        body.finish()
        return _item(dict(found), name, defaults, refer)
    reader = _ITEMS.get(kind)
    if reader is None:
        _refuse_kind(body.name("type"), "item", kind, (*_ITEMS, _REFERENCE))
    item = reader(body, defaults)
    body.finish()
    return item


def _refuse_kind(field: str, what: str, kind: str, known: Iterable[str]) -> NoReturn:
    hint = _HINTS.get(kind, f"allowed is {', '.join(known)}")
    message = f"{field} names no kind of {what} that is served"
    raise BadRequest(message, field=field, reason="value", hint=hint)


def _message(body: Body, defaults: MediaDefaults) -> ReadItem:
    role = body.need("role", word(*_ROLES))
    content = body.need("content", anything)
    parts = parts_of(content, body.name("content"), defaults, _PARTS)
    body.neutral("phase", allowed=("final_answer",))
    kind = "output_text" if role == "assistant" else "input_text"
    listed = {**_head(body, "msg"), "type": "message", "role": role}
    listed["content"] = _listed(content, kind)
    return ReadItem(Turn(_ROLES[role], parts), listed)


def _call(body: Body, _defaults: MediaDefaults) -> ReadItem:
    call = ToolCall(
        body.need("call_id", short_text),
        body.need("name", tool_name),
        body.need("arguments", call_arguments),
    )
    for field in ("caller", "namespace", "created_by"):
        body.neutral(field)
    body.neutral("async", allowed=(False,))
    body.take("parsed_arguments", anything, None)  # the openai client's own
    head = _head(body, "fc")
    listed = call_item(head["id"], head["status"], call)
    return ReadItem(Turn("assistant", (), tool_calls=(call,)), listed)


def _result(body: Body, defaults: MediaDefaults) -> ReadItem:
    call_id = body.need("call_id", short_text)
    output = body.need("output", anything)
    parts = parts_of(output, body.name("output"), defaults, _PARTS)
    for field in ("caller", "namespace", "name", "created_by"):
        body.neutral(field)
    listed = {**_head(body, "fco"), "type": "function_call_output", "call_id": call_id}
    listed["output"] = output
    return ReadItem(Turn("tool", parts, tool_call_id=call_id), listed)


def _head(body: Body, prefix: str) -> dict[str, Any]:
    """The item's id and status, made where there are none. Changes: they count as known."""
    item_id = body.take("id", short_text, None)
    return {
        "id": item_id or new_id(prefix),
        "status": body.take("status", _STATES, "completed"),
    }


def _listed(content: object, kind: str) -> list[Any]:
    """Content that was read, as a list of parts."""
    if not isinstance(content, list):
        return [text_part(str(content)) if kind == "output_text" else _input_text(content)]
    return [
        text_part(part["text"]) if part.get("type") == "output_text" else part
        for part in content
    ]


def _input_text(words: object) -> dict[str, Any]:
    return {"type": "input_text", "text": words}


def _output_text(body: Body, _defaults: MediaDefaults) -> ContentPart:
    """Text of an earlier answer; how likely it was does not matter any more."""
    body.neutral("annotations", allowed=([],))
    for field in ("logprobs", "parsed"):
        body.take(field, anything, None)
    return TextPart(body.need("text", text))


def _refuse_file(body: Body, _defaults: MediaDefaults) -> ContentPart:
    _refuse_kind(body.name("type"), "part", "input_file", ())


_PARTS: Mapping[str, PartReader] = {
    **READERS,
    "output_text": _output_text,
    "input_file": _refuse_file,
}
_ITEMS: Mapping[str, Callable[[Body, MediaDefaults], ReadItem]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _result,
}
