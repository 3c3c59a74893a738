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

__all__ = ["MESSAGES", "TOOL_FIELDS"]

_ADDRESS = text(
    "An http(s):, data: or file: address, or an uploaded file's id.",
    pattern="^(https?://|data:|file://|file-)",
)
_NAME = text(pattern="^[a-zA-Z0-9_-]{1,64}$")
_DETAIL = word("auto", "low", "high", doc="`low` bounds a picture to 512 x 512 pixels.")
_FRAME = text("base64 or a data: address of a picture.")

_PARTS = (
    closed({"type": word("text", "input_text"), "text": text()}, need=("type", "text")),
    closed(
        {
            "type": word("image_url", "input_image"),
            "image_url": either(
                _ADDRESS,
                closed(
                    {
                        "url": _ADDRESS,
                        "detail": _DETAIL,
                        "max_pixels": MEDIA["max_pixels"],
                        "min_pixels": MEDIA["min_pixels"],
                    },
                    need=("url",),
                ),
            ),
            "detail": _DETAIL,
        },
        need=("type", "image_url"),
    ),
    closed(
        {
            "type": word("image"),
            "source": either(
                closed(
                    {"type": word("base64"), "media_type": text(), "data": text()},
                    need=("type", "media_type", "data"),
                ),
                closed({"type": word("url"), "url": _ADDRESS}, need=("type", "url")),
            ),
        },
        need=("type", "source"),
    ),
    closed(
        {
            "type": word("video_url"),
            "video_url": either(
                _ADDRESS,
                closed({"url": _ADDRESS, "frames": array(_FRAME), **limits_of_clips()}),
            ),
        },
        need=("type", "video_url"),
    ),
)
_CONTENT = either(text(), array(either(*_PARTS)), doc="A text, or parts in order.")

_CALL = closed(
    {
        "id": text(),
        "type": word("function"),
        "index": integer(0, 2**31),
        "function": closed(
            {
                "name": _NAME,
                "arguments": text("A JSON object as text."),
                "parsed_arguments": {"description": "Has no effect here."},
            },
            need=("name",),
        ),
    },
    need=("id", "function"),
)
_SPEAKERS = closed(
    {"role": word("system", "developer", "user"), "content": _CONTENT, "name": only()},
    need=("role",),
)
_ASSISTANT = closed(
    {
        "role": word("assistant"),
        "content": _CONTENT,
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
        "content": _CONTENT,
        "name": only(),
        "tool_call_id": text("The id of a call in an earlier message."),
    },
    need=("role", "tool_call_id"),
)

MESSAGES = array(either(_SPEAKERS, _ASSISTANT, _RESULT), "The conversation.", least=1)

_FUNCTION_NAME = closed({"name": _NAME}, need=("name",))
_PARAMETERS: Schema = {"type": "object", "description": "The JSON schema of the arguments."}

TOOL_FIELDS: dict[str, Schema] = {
    "tools": array(
        closed(
            {
                "type": word("function"),
                "function": closed(
                    {
                        "name": _NAME,
                        "description": text(),
                        "parameters": _PARAMETERS,
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
