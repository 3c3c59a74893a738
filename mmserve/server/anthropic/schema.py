"""Anthropic's routes as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.anthropic.request import NAMES
from mmserve.server.chat.schema_messages import CLIP_PART, SOURCE_PART, address_part
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared

__all__ = ["COUNT", "MESSAGE", "SURFACE"]

_COUNT = shape.integer(0, 2**53)
_MARK = shape.closed(
    {"type": shape.word("ephemeral"), "ttl": shape.word("5m", "1h")},
    need=("type",),
    doc="Changes nothing: what was seen once stays cached by itself.",
)


def _block(schema: shape.Schema) -> shape.Schema:
    """A part of a conversation as a block, which may have a mark. Pure."""
    marked = shape.closed({"cache_control": _MARK})["properties"]
    return {**schema, "properties": {**schema["properties"], **marked}}


_TEXT = _block(
    shape.closed(
        {"type": shape.word("text"), "text": shape.text(), "citations": shape.only([])},
        need=("type", "text"),
    )
)
_MEDIA_BLOCKS = tuple(
    _block(part) for part in (SOURCE_PART, address_part("image_url"), CLIP_PART)
)
_TOOL_USE = _block(
    shape.closed(
        {
            "type": shape.word("tool_use"),
            "id": shape.text(),
            "name": shape.text(),
            "input": {"type": "object"},
            "caller": shape.only({"type": "direct"}),
            "toolset_name": shape.only(),
        },
        need=("type", "id", "name", "input"),
    )
)
_RESULT = _block(
    shape.closed(
        {
            "type": shape.word("tool_result"),
            "tool_use_id": shape.text("The id of a tool_use in an earlier message."),
            "is_error": shape.flag("The model sees it as an error."),
            "content": shape.either(
                shape.text(), shape.array(shape.either(_TEXT, *_MEDIA_BLOCKS))
            ),
            "toolset_name": shape.only(),
        },
        need=("type", "tool_use_id"),
    )
)


def _message(role: str, *blocks: shape.Schema) -> shape.Schema:
    content = shape.either(
        shape.text(), shape.array(shape.either(*blocks)), doc="A text, or blocks in order."
    )
    return shape.closed(
        {"role": shape.word(role), "content": content}, need=("role", "content")
    )


_MESSAGES = shape.array(
    shape.either(
        _message("user", _TEXT, *_MEDIA_BLOCKS, _RESULT),
        _message("assistant", _TEXT, _TOOL_USE),
        _message("system", _TEXT),
    ),
    "The conversation; a last message of the assistant is continued.",
    least=1,
)
_NAME = shape.text(pattern="^[a-zA-Z0-9_-]{1,128}$")
_TOOL = shape.closed(
    {
        "type": shape.word("custom"),
        "name": _NAME,
        "description": shape.text(),
        "input_schema": {"type": "object", "description": "The JSON schema of the input."},
        "strict": shape.flag(),
        "eager_input_streaming": shape.flag(
            "Changes nothing: input always comes piece by piece."
        ),
        "defer_loading": shape.OFF,
        "input_examples": shape.only([]),
        "allowed_callers": shape.only(["direct"]),
        "cache_control": _MARK,
    },
    need=("name", "input_schema"),
)
_IS_SINGLE = {"disable_parallel_tool_use": shape.flag("An answer calls one tool at most.")}
_CHOICE = shape.either(
    shape.closed({"type": shape.word("none")}, need=("type",)),
    shape.closed({"type": shape.word("auto", "any"), **_IS_SINGLE}, need=("type",)),
    shape.closed(
        {"type": shape.word("tool"), "name": _NAME, **_IS_SINGLE}, need=("type", "name")
    ),
)
_OUTPUT = shape.closed(
    {
        "effort": shape.only(),
        "format": shape.closed(
            {
                "type": shape.word("json_schema"),
                "schema": shape.schema_or_text("The answer is a JSON value of this schema."),
            },
            need=("type", "schema"),
        ),
    }
)
_PROMPT: dict[str, shape.Schema] = {
    **shared.MEDIA,
    "model": shared.MODEL,
    "system": shape.either(
        shape.text(), shape.array(_TEXT), doc="Said before the conversation."
    ),
    "messages": _MESSAGES,
    "tools": shape.array(_TOOL, most=128),
    "tool_choice": _CHOICE,
    "thinking": shape.closed({"type": shape.word("disabled")}, need=("type",)),
    "output_config": _OUTPUT,
    "cache_control": _MARK,
    "cache_salt": shared.SALT,
    "speed": shape.only("standard"),
    **{name: shape.only() for name in ("container", "diagnostics", "inference_geo")},
}

COUNT = shape.closed(_PROMPT, need=("messages",)) | {"title": "MessageTokens"}
"""The body of `/v1/messages/count_tokens`."""

MESSAGE = shape.closed(
    {
        **shared.sampling(NAMES),
        **shared.CONSTRAINTS,
        **_PROMPT,
        "max_tokens": shape.integer(0, 2**31, "Most tokens to generate."),
        "stream": shape.flag("Send the answer as events, as it grows."),
        "metadata": shape.closed({"user_id": shared.USER}),
        "service_tier": shape.only("auto", "standard_only"),
        "n": shape.only(1),
        **shared.HANDLING,
    },
    need=("max_tokens", "messages"),
) | {"title": "Message"}
"""The body of `/v1/messages`."""

_ANSWER = shape.opened(
    {
        "id": shape.text(),
        "type": shape.word("message"),
        "role": shape.word("assistant"),
        "model": shape.text(),
        "content": shape.array(shape.opened({"type": shape.word("text", "tool_use")})),
        "stop_reason": {"type": ["string", "null"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": shape.opened(
            {
                "input_tokens": _COUNT,
                "cache_read_input_tokens": _COUNT,
                "output_tokens": _COUNT,
            }
        ),
    }
)

SURFACE: shape.Surface = {
    "/v1/messages": {"post": shape.generating("Answer one conversation.", MESSAGE, _ANSWER)},
    "/v1/messages/count_tokens": {
        "post": shape.Operation(
            summary="How many tokens a prompt has.",
            body=COUNT,
            answers=shape.json_answer(input_tokens=_COUNT),
            refusals=("bad", "absent", "left", "behind", "late"),
        )
    },
}
