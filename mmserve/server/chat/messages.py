"""OpenAI messages as turns: text, pictures and clips stand where the client put them.

Calls of tools stand in the assistant's turn, and each tool's turn names the call it answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from mmserve.core import (
    BadRequest,
    ImagePart,
    RawPart,
    TextPart,
    ToolCall,
    Turn,
    VideoPart,
)
from mmserve.server.chat.tools import check_depth, tool_name
from mmserve.server.fields import Body, anything, integer, list_of, text, word, wrong
from mmserve.server.media import MediaDefaults, address, clip_item, picture_item, source_item

__all__ = ["READERS", "ContentPart", "PartReader", "call_arguments", "parts_of", "turns_of"]

ContentPart = TextPart | RawPart | ImagePart | VideoPart
PartReader = Callable[[Body, MediaDefaults], ContentPart]
"""Reads a part whose type is known; what it takes from the body counts as known."""

_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_LOW_DETAIL_PIXELS = 512 * 512


def turns_of(value: object, name: str, defaults: MediaDefaults) -> tuple[Turn, ...]:
    """The conversation, without the turn to be answered. Pure.

    Empty and null content is an empty turn; text parts are joined with nothing between.
    """
    turns = list_of(lambda item, where: _turn(item, where, defaults))(value, name)
    if not turns:
        raise wrong(name, [], "a list of at least one message")
    _check_results(turns, name)
    return turns


def _turn(value: object, name: str, defaults: MediaDefaults) -> Turn:
    body = Body(value, name)
    role = body.need("role", word(*_ROLES))
    parts = body.take("content", lambda item, where: parts_of(item, where, defaults), ())
    calls: tuple[ToolCall, ...] = ()
    if role == "assistant":
        for field in ("refusal", "audio", "annotations", "reasoning_content"):
            body.neutral(field, allowed=([],))
        body.take("function_call", _refuse_older, None)
        body.take("parsed", anything, None)  # the openai client sends back what it parsed
        calls = body.take("tool_calls", list_of(_tool_call), ())
    call_id = body.need("tool_call_id", text) if role == "tool" else ""
    body.neutral("name")
    body.finish()
    return Turn(_ROLES[role], parts, tool_calls=calls, tool_call_id=call_id)


def _refuse_older(_value: object, name: str) -> None:
    message = f"{name} is the older form of tool_calls, and is not served"
    raise BadRequest(message, field=name, reason="unsupported", hint="send tool_calls")


def _tool_call(value: object, name: str) -> ToolCall:
    body = Body(value, name)
    call_id = body.need("id", text)
    body.take("type", word("function"), None)
    body.take("index", integer(0, 2**31), None)  # streams number their calls
    function = Body(body.need("function", anything), body.name("function"))
    called = function.need("name", tool_name)
    arguments = function.take("arguments", call_arguments, "{}")
    function.take("parsed_arguments", anything, None)
    function.finish()
    body.finish()
    return ToolCall(call_id, called, arguments)


def call_arguments(value: object, name: str) -> str:
    """A JSON object as text; nothing at all is an empty one. Pure."""
    words = text(value, name)
    try:
        found = json.loads(words or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise wrong(name, value, "a JSON object as text")
    check_depth(found, name)
    return words


def _check_results(turns: tuple[Turn, ...], name: str) -> None:
    """Every result answers a call of an earlier turn."""
    known: set[str] = set()
    for number, turn in enumerate(turns):
        if turn.role == "tool" and turn.tool_call_id not in known:
            field = f"{name}[{number}].tool_call_id"
            message = f"{field} is the id of no call in an earlier assistant message"
            raise BadRequest(message, field=field, reason="unknown")
        known.update(call.call_id for call in turn.tool_calls)


def parts_of(
    value: object,
    name: str,
    defaults: MediaDefaults,
    readers: Mapping[str, PartReader] | None = None,
) -> tuple[ContentPart, ...]:
    """The parts of a content, given as text or as a list, each read by its type. Pure."""
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    if not isinstance(value, list):
        raise wrong(name, value, "a string or a list of parts")
    known = readers or READERS
    return list_of(lambda item, where: _part(item, where, defaults, known))(value, name)


def _part(
    value: object, name: str, defaults: MediaDefaults, readers: Mapping[str, PartReader]
) -> ContentPart:
    body = Body(value, name)
    kind = body.need("type", text)
    reader = readers.get(kind)
    if reader is None:
        field = body.name("type")
        message = f"{field} names no kind of part that is served"
        raise BadRequest(
            message, field=field, reason="value", hint=f"allowed is {', '.join(readers)}"
        )
    part = reader(body, defaults)
    body.finish()
    return part


def _text_part(body: Body, _defaults: MediaDefaults) -> ContentPart:
    return TextPart(body.need("text", text))


def _picture_part(body: Body, defaults: MediaDefaults) -> ContentPart:
    bounds = _detail(body).over(defaults)
    return body.need("image_url", lambda item, name: _picture(item, name, bounds))


def _input_picture_part(body: Body, defaults: MediaDefaults) -> ContentPart:
    """A picture by its address, or by the id of an uploaded file."""
    if not body.has("file_id"):
        body.neutral("file_id")
        return _picture_part(body, defaults)
    if body.has("image_url"):
        name = body.name("file_id")
        message = f"{name} and image_url are given, a part is one picture"
        raise BadRequest(message, field=name, reason="conflict")
    body.neutral("image_url")
    bounds = _detail(body).over(defaults)
    return body.need(
        "file_id", lambda v, name: bounds.picture(bounds.find(text(v, name), name))
    )


def _picture(value: object, name: str, defaults: MediaDefaults) -> ContentPart:
    if isinstance(value, str):
        return defaults.picture(defaults.address(value, name))
    body = Body(value, name)
    bounds = _detail(body)
    item = {field: body.take(field, anything, None) for field in ("max_pixels", "min_pixels")}
    url = body.need("url", address)
    body.finish()
    return picture_item({"url": url, **item}, name, bounds.over(defaults))


def _clip_part(body: Body, defaults: MediaDefaults) -> ContentPart:
    return body.need("video_url", lambda item, name: _clip(item, name, defaults))


def _clip(value: object, name: str, defaults: MediaDefaults) -> VideoPart:
    if isinstance(value, str):
        return defaults.clip(defaults.address(value, name))
    if isinstance(value, dict):
        Body(value, name).take("url", address, None)
    return clip_item(value, name, defaults)


def _anthropic_picture(body: Body, defaults: MediaDefaults) -> ContentPart:
    return defaults.picture(
        body.need("source", lambda item, name: source_item(item, name, defaults))
    )


def _detail(body: Body) -> MediaDefaults:
    """`detail: low` bounds a picture to 512 x 512 pixels; the other words change nothing."""
    is_low = body.take("detail", word("auto", "low", "high", "original"), "auto") == "low"
    return MediaDefaults(max_pixels=_LOW_DETAIL_PIXELS if is_low else None)


READERS: Mapping[str, PartReader] = {
    "text": _text_part,
    "input_text": _text_part,
    "image_url": _picture_part,
    "input_image": _input_picture_part,
    "image": _anthropic_picture,
    "video_url": _clip_part,
}
"""By the type of the part."""
