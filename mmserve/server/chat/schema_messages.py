"""Messages and tools of a conversation as schemas."""

from __future__ import annotations

from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared

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

_ADDRESS = shape.text(
    "An http(s):, data: or file: address, or an uploaded file's id.",
    pattern="^(https?://|data:|file://|file-)",
)
NAME = shape.text(pattern="^[a-zA-Z0-9_-]{1,64}$")
_DETAIL = shape.word(
    "auto", "low", "high", "original", doc="`low` bounds a picture to 512 x 512 pixels."
)
_FRAME = shape.text("base64 or a data: address of a picture.")

_TEXT_PART = shape.closed(
    {"type": shape.word("text", "input_text"), "text": shape.text()}, need=("type", "text")
)


def address_part(kind: str, **more: shape.Schema) -> shape.Schema:
    """A picture by its address, as a part of this kind. Pure."""
    bounds = {name: shared.MEDIA[name] for name in ("max_pixels", "min_pixels")}
    of_address = shape.closed({"url": _ADDRESS, "detail": _DETAIL, **bounds}, need=("url",))
    properties = {
        "type": shape.word(kind),
        "image_url": shape.either(_ADDRESS, of_address),
        "detail": _DETAIL,
        **more,
    }
    return shape.closed(properties, need=("type", "image_url"))


_FILE_PART = shape.closed(
    {
        "type": shape.word("input_image"),
        "file_id": shape.text("An uploaded file's id."),
        "image_url": shape.only(doc="The file is the picture."),
        "detail": _DETAIL,
    },
    need=("type", "file_id"),
)
SOURCE_PART = shape.closed(
    {
        "type": shape.word("image"),
        "source": shape.either(
            shape.closed(
                {
                    "type": shape.word("base64"),
                    "media_type": shape.text(),
                    "data": shape.text(),
                },
                need=("type", "media_type", "data"),
            ),
            shape.closed({"type": shape.word("url"), "url": _ADDRESS}, need=("type", "url")),
            shape.closed(
                {"type": shape.word("file"), "file_id": shape.text()}, need=("type", "file_id")
            ),
        ),
    },
    need=("type", "source"),
)
"""A picture as Anthropic's API spells it."""

CLIP_PART = shape.closed(
    {
        "type": shape.word("video_url"),
        "video_url": shape.either(
            _ADDRESS,
            shape.closed(
                {"url": _ADDRESS, "frames": shape.array(_FRAME), **shared.limits_of_clips()}
            ),
        ),
    },
    need=("type", "video_url"),
)

PARTS = (
    _TEXT_PART,
    address_part("image_url"),
    address_part("input_image", file_id=shape.only(doc="The address is the picture.")),
    _FILE_PART,
    SOURCE_PART,
    CLIP_PART,
)
"""What a content may hold."""

CONTENT = shape.either(
    shape.text(), shape.array(shape.either(*PARTS)), doc="A text, or parts in order."
)

_CALL = shape.closed(
    {
        "id": shape.text(),
        "type": shape.word("function"),
        "index": shape.integer(0, 2**31),
        "function": shape.closed(
            {
                "name": NAME,
                "arguments": shape.text("A JSON object as text."),
                "parsed_arguments": {"description": "Has no effect here."},
            },
            need=("name",),
        ),
    },
    need=("id", "function"),
)
_SPEAKERS = shape.closed(
    {
        "role": shape.word("system", "developer", "user"),
        "content": CONTENT,
        "name": shape.only(),
    },
    need=("role",),
)
_ASSISTANT = shape.closed(
    {
        "role": shape.word("assistant"),
        "content": CONTENT,
        "name": shape.only(),
        "refusal": shape.only([]),
        "audio": shape.only([]),
        "annotations": shape.only([]),
        "reasoning_content": shape.only([]),
        "function_call": shape.only(),
        "parsed": {"description": "Has no effect here."},
        "tool_calls": shape.array(_CALL),
    },
    need=("role",),
)
_RESULT = shape.closed(
    {
        "role": shape.word("tool"),
        "content": CONTENT,
        "name": shape.only(),
        "tool_call_id": shape.text("The id of a call in an earlier message."),
    },
    need=("role", "tool_call_id"),
)

MESSAGES = shape.array(
    shape.either(_SPEAKERS, _ASSISTANT, _RESULT), "The conversation.", least=1
)

_FUNCTION_NAME = shape.closed({"name": NAME}, need=("name",))
PARAMETERS: shape.Schema = {
    "type": "object",
    "description": "The JSON schema of the arguments.",
}

TOOL_FIELDS: dict[str, shape.Schema] = {
    "tools": shape.array(
        shape.closed(
            {
                "type": shape.word("function"),
                "function": shape.closed(
                    {
                        "name": NAME,
                        "description": shape.text(),
                        "parameters": PARAMETERS,
                        "strict": shape.flag(),
                    },
                    need=("name",),
                ),
            },
            need=("type", "function"),
        ),
        most=128,
    ),
    "tool_choice": shape.either(
        shape.word("none", "auto", "required"),
        shape.closed(
            {"type": shape.word("function"), "function": _FUNCTION_NAME},
            need=("type", "function"),
        ),
    ),
    "parallel_tool_calls": shape.flag("Whether an answer may call several tools."),
    "functions": shape.only([], doc="The older form of tools; not served."),
    "function_call": shape.only(
        "none", "auto", doc="The older form of tool_choice; not served."
    ),
}
"""What a chat body says of tools."""
