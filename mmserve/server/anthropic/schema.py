"""Anthropic's routes as `/openapi.json` tells of them."""

from __future__ import annotations

from mmserve.server.anthropic.request import NAMES
from mmserve.server.describe.schema import (
    OFF,
    Operation,
    Schema,
    Surface,
    array,
    closed,
    either,
    flag,
    generating,
    integer,
    json_answer,
    only,
    opened,
    schema_or_text,
    text,
    word,
)
from mmserve.server.describe.shared import (
    CONSTRAINTS,
    MEDIA,
    MODEL,
    PRIORITY,
    SALT,
    USER,
    sampling,
)
from mmserve.server.openai.schema_messages import CLIP_PART, SOURCE_PART, address_part

__all__ = ["COUNT", "MESSAGE", "SURFACE"]

_COUNT = integer(0, 2**53)
_MARK = closed(
    {"type": word("ephemeral"), "ttl": word("5m", "1h")},
    need=("type",),
    doc="Changes nothing: what was seen once stays cached by itself.",
)


def _block(schema: Schema) -> Schema:
    """A part of a conversation as a block, which may have a mark. Pure."""
    marked = closed({"cache_control": _MARK})["properties"]
    return {**schema, "properties": {**schema["properties"], **marked}}


_TEXT = _block(
    closed({"type": word("text"), "text": text(), "citations": only([])}, need=("type", "text"))
)
_MEDIA_BLOCKS = tuple(
    _block(part) for part in (SOURCE_PART, address_part("image_url"), CLIP_PART)
)
_TOOL_USE = _block(
    closed(
        {
            "type": word("tool_use"),
            "id": text(),
            "name": text(),
            "input": {"type": "object"},
            "caller": only({"type": "direct"}),
            "toolset_name": only(),
        },
        need=("type", "id", "name", "input"),
    )
)
_RESULT = _block(
    closed(
        {
            "type": word("tool_result"),
            "tool_use_id": text("The id of a tool_use in an earlier message."),
            "is_error": flag("The model sees it as an error."),
            "content": either(text(), array(either(_TEXT, *_MEDIA_BLOCKS))),
            "toolset_name": only(),
        },
        need=("type", "tool_use_id"),
    )
)


def _message(role: str, *blocks: Schema) -> Schema:
    content = either(text(), array(either(*blocks)), doc="A text, or blocks in order.")
    return closed({"role": word(role), "content": content}, need=("role", "content"))


_MESSAGES = array(
    either(
        _message("user", _TEXT, *_MEDIA_BLOCKS, _RESULT),
        _message("assistant", _TEXT, _TOOL_USE),
        _message("system", _TEXT),
    ),
    "The conversation; a last message of the assistant is continued.",
    least=1,
)
_NAME = text(pattern="^[a-zA-Z0-9_-]{1,128}$")
_TOOL = closed(
    {
        "type": word("custom"),
        "name": _NAME,
        "description": text(),
        "input_schema": {"type": "object", "description": "The JSON schema of the input."},
        "strict": flag(),
        "eager_input_streaming": flag("Changes nothing: input always comes piece by piece."),
        "defer_loading": OFF,
        "input_examples": only([]),
        "allowed_callers": only(["direct"]),
        "cache_control": _MARK,
    },
    need=("name", "input_schema"),
)
_IS_SINGLE = {"disable_parallel_tool_use": flag("An answer calls one tool at most.")}
_CHOICE = either(
    closed({"type": word("none")}, need=("type",)),
    closed({"type": word("auto", "any"), **_IS_SINGLE}, need=("type",)),
    closed({"type": word("tool"), "name": _NAME, **_IS_SINGLE}, need=("type", "name")),
)
_OUTPUT = closed(
    {
        "effort": only(),
        "format": closed(
            {
                "type": word("json_schema"),
                "schema": schema_or_text("The answer is a JSON value of this schema."),
            },
            need=("type", "schema"),
        ),
    }
)
_PROMPT: dict[str, Schema] = {
    **MEDIA,
    "model": MODEL,
    "system": either(text(), array(_TEXT), doc="Said before the conversation."),
    "messages": _MESSAGES,
    "tools": array(_TOOL, most=128),
    "tool_choice": _CHOICE,
    "thinking": closed({"type": word("disabled")}, need=("type",)),
    "output_config": _OUTPUT,
    "cache_control": _MARK,
    "cache_salt": SALT,
    "speed": only("standard"),
    **{name: only() for name in ("container", "diagnostics", "inference_geo")},
}

COUNT = closed(_PROMPT, need=("messages",)) | {"title": "MessageTokens"}
"""The body of `/v1/messages/count_tokens`."""

MESSAGE = closed(
    {
        **sampling(NAMES),
        **CONSTRAINTS,
        **_PROMPT,
        "max_tokens": integer(0, 2**31, "Most tokens to generate."),
        "stream": flag("Send the answer as events, as it grows."),
        "metadata": closed({"user_id": USER}),
        "service_tier": only("auto", "standard_only"),
        "n": only(1),
        "return_timing": flag("Tell the time of each stage, and what was cached."),
        "return_token_ids": flag("Tell the token ids of prompt and answer."),
        "priority": PRIORITY,
        "rid": text("The request's id; goes before the header's.", pattern="^[!-~]{1,128}$"),
    },
    need=("max_tokens", "messages"),
) | {"title": "Message"}
"""The body of `/v1/messages`."""

_ANSWER = opened(
    {
        "id": text(),
        "type": word("message"),
        "role": word("assistant"),
        "model": text(),
        "content": array(opened({"type": word("text", "tool_use")})),
        "stop_reason": {"type": ["string", "null"]},
        "stop_sequence": {"type": ["string", "null"]},
        "usage": opened(
            {
                "input_tokens": _COUNT,
                "cache_read_input_tokens": _COUNT,
                "output_tokens": _COUNT,
            }
        ),
    }
)

SURFACE: Surface = {
    "/v1/messages": {"post": generating("Answer one conversation.", MESSAGE, _ANSWER)},
    "/v1/messages/count_tokens": {
        "post": Operation(
            summary="How many tokens a prompt has.",
            body=COUNT,
            answers=json_answer(input_tokens=_COUNT),
            refusals=("bad", "absent", "large", "left", "behind", "late"),
        )
    },
}
