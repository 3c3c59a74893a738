"""Messages and tools of a conversation as schemas."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    Schema,
    array,
    closed,
    either,
    flag,
    integer,
    only,
    text,
    word,
)
from mmserve.server.describe.shared import MEDIA, limits_of_clips

__all__ = [
    "CLIP_PART",
    "CONTENT",
    "MESSAGES",
    "NAME",
    "PARAMETERS",
    "PARTS",
    "SOURCE_PART",
    "TOOL_FIELDS",
    "address_part",
]

_ADDRESS = text(
    "An http(s):, data: or file: address, or an uploaded file's id.",
    pattern="^(https?://|data:|file://|file-)",
)
NAME = text(pattern="^[a-zA-Z0-9_-]{1,64}$")
_DETAIL = word(
    "auto", "low", "high", "original", doc="`low` bounds a picture to 512 x 512 pixels."
)
_FRAME = text("base64 or a data: address of a picture.")

_TEXT_PART = closed({"type": word("text", "input_text"), "text": text()}, need=("type", "text"))


def address_part(kind: str, **more: Schema) -> Schema:
    """A picture by its address, as a part of this kind. Pure."""
    bounds = {name: MEDIA[name] for name in ("max_pixels", "min_pixels")}
    of_address = closed({"url": _ADDRESS, "detail": _DETAIL, **bounds}, need=("url",))
    properties = {
        "type": word(kind),
        "image_url": either(_ADDRESS, of_address),
        "detail": _DETAIL,
        **more,
    }
    return closed(properties, need=("type", "image_url"))


_FILE_PART = closed(
    {
        "type": word("input_image"),
        "file_id": text("An uploaded file's id."),
        "image_url": only(doc="The file is the picture."),
        "detail": _DETAIL,
    },
    need=("type", "file_id"),
)
SOURCE_PART = closed(
    {
        "type": word("image"),
        "source": either(
            closed(
                {"type": word("base64"), "media_type": text(), "data": text()},
                need=("type", "media_type", "data"),
            ),
            closed({"type": word("url"), "url": _ADDRESS}, need=("type", "url")),
            closed({"type": word("file"), "file_id": text()}, need=("type", "file_id")),
        ),
    },
    need=("type", "source"),
)
"""A picture as Anthropic's API spells it."""

CLIP_PART = closed(
    {
        "type": word("video_url"),
        "video_url": either(
            _ADDRESS,
            closed({"url": _ADDRESS, "frames": array(_FRAME), **limits_of_clips()}),
        ),
    },
    need=("type", "video_url"),
)

PARTS = (
    _TEXT_PART,
    address_part("image_url"),
    address_part("input_image", file_id=only(doc="The address is the picture.")),
    _FILE_PART,
    SOURCE_PART,
    CLIP_PART,
)
"""What a content may hold."""

CONTENT = either(text(), array(either(*PARTS)), doc="A text, or parts in order.")

_CALL = closed(
    {
        "id": text(),
        "type": word("function"),
        "index": integer(0, 2**31),
        "function": closed(
            {
                "name": NAME,
                "arguments": text("A JSON object as text."),
                "parsed_arguments": {"description": "Has no effect here."},
            },
            need=("name",),
        ),
    },
    need=("id", "function"),
)
_SPEAKERS = closed(
    {"role": word("system", "developer", "user"), "content": CONTENT, "name": only()},
    need=("role",),
)
_ASSISTANT = closed(
    {
        "role": word("assistant"),
        "content": CONTENT,
        "name": only(),
        "refusal": only([]),
        "audio": only([]),
        "annotations": only([]),
        "reasoning_content": only([]),
        "function_call": only(),
        "parsed": {"description": "Has no effect here."},
        "tool_calls": array(_CALL),
    },
    need=("role",),
)
_RESULT = closed(
    {
        "role": word("tool"),
        "content": CONTENT,
        "name": only(),
        "tool_call_id": text("The id of a call in an earlier message."),
    },
    need=("role", "tool_call_id"),
)

MESSAGES = array(either(_SPEAKERS, _ASSISTANT, _RESULT), "The conversation.", least=1)

_FUNCTION_NAME = closed({"name": NAME}, need=("name",))
PARAMETERS: Schema = {"type": "object", "description": "The JSON schema of the arguments."}

TOOL_FIELDS: dict[str, Schema] = {
    "tools": array(
        closed(
            {
                "type": word("function"),
                "function": closed(
                    {
                        "name": NAME,
                        "description": text(),
                        "parameters": PARAMETERS,
                        "strict": flag(),
                    },
                    need=("name",),
                ),
            },
            need=("type", "function"),
        ),
        most=128,
    ),
    "tool_choice": either(
        word("none", "auto", "required"),
        closed(
            {"type": word("function"), "function": _FUNCTION_NAME}, need=("type", "function")
        ),
    ),
    "parallel_tool_calls": flag("Whether an answer may call several tools."),
    "functions": only([], doc="The older form of tools; not served."),
    "function_call": only("none", "auto", doc="The older form of tool_choice; not served."),
}
"""What a chat body says of tools."""
