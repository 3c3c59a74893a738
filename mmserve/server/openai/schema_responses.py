"""The Responses API as `/openapi.json` tells of it."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    JSON,
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
    query,
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
from mmserve.server.openai.responses_request import INCLUDABLE, NAMES
from mmserve.server.openai.schema_messages import (
    CONTENT,
    NAME,
    PARAMETERS,
    PARTS,
    TOOL_FIELDS,
)

__all__ = ["RESPONSES", "SURFACE"]

_COUNT = integer(0, 2**53)
_SHORT = text(most=256)
_STATES = word("in_progress", "completed", "incomplete")
_HEAD: dict[str, Schema] = {"id": _SHORT, "status": _STATES}
_ANY: Schema = {"description": "Has no effect here."}
_OUTPUT_TEXT = closed(
    {
        "type": word("output_text"),
        "text": text(),
        "annotations": only([]),
        "logprobs": _ANY,
        "parsed": _ANY,
    },
    need=("type", "text"),
)
_CONTENT = either(text(), array(either(*PARTS, _OUTPUT_TEXT)), doc=CONTENT["description"])
_MESSAGE = closed(
    {
        **_HEAD,
        "type": word("message"),
        "role": word("user", "assistant", "system", "developer"),
        "content": _CONTENT,
        "phase": only("final_answer"),
    },
    need=("role", "content"),
)
_CALL = closed(
    {
        **_HEAD,
        "type": word("function_call"),
        "call_id": _SHORT,
        "name": NAME,
        "arguments": text("A JSON object as text."),
        "parsed_arguments": _ANY,
        "async": OFF,
        **{field: only() for field in ("caller", "namespace", "created_by")},
    },
    need=("type", "call_id", "name", "arguments"),
)
_RESULT = closed(
    {
        **_HEAD,
        "type": word("function_call_output"),
        "call_id": text("The id of a call before it.", most=256),
        "output": _CONTENT,
        **{field: only() for field in ("caller", "namespace", "name", "created_by")},
    },
    need=("type", "call_id", "output"),
)
_REFERENCE = closed(
    {"type": word("item_reference"), "id": text("The id of an item of a stored response.")},
    need=("type", "id"),
)
_INPUT = either(
    text(),
    array(either(_MESSAGE, _CALL, _RESULT, _REFERENCE), least=1),
    doc="A text of the user, or items in order.",
)

_NESTED = only(doc="How the chat API writes it; refused.")
_TOOL = closed(
    {
        "type": word("function"),
        "name": NAME,
        "description": text(),
        "parameters": PARAMETERS,
        "strict": flag(),
        "function": _NESTED,
        "allowed_callers": only(),
        "output_schema": only(),
        "async": OFF,
        "defer_loading": OFF,
    },
    need=("type", "name"),
)
_NAMED = closed(
    {"type": word("function"), "name": NAME, "function": _NESTED}, need=("type", "name")
)
_CHOICE = either(
    word("none", "auto", "required"),
    _NAMED,
    closed(
        {
            "type": word("allowed_tools"),
            "mode": word("auto", "required"),
            "tools": array(_NAMED, least=1),
        },
        need=("type", "mode", "tools"),
    ),
)
_FORMAT = either(
    closed({"type": word("text", "json_object")}, need=("type",)),
    closed(
        {
            "type": word("json_schema"),
            "name": text(),
            "description": text(),
            "strict": flag(),
            "schema": {"type": ["object", "boolean"]},
            "json_schema": _NESTED,
        },
        need=("type", "schema"),
    ),
)
_METADATA: Schema = {
    "type": "object",
    "additionalProperties": text(most=512),
    "propertyNames": {"maxLength": 64},
    "maxProperties": 16,
    "description": "Texts by name, which the response repeats.",
}
_REFUSED = {
    name: only(doc="Not a field of this API; refused.")
    for name in (
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "logprobs",
        "conversation",
    )
}
_NEUTRAL = {
    name: only()
    for name in (
        "reasoning",
        "prompt",
        "max_tool_calls",
        "background_options",
        "context_management",
        "moderation",
        "prompt_cache_options",
        "access_programs",
        "image",
    )
}

RESPONSES = closed(
    {
        **_REFUSED,
        **_NEUTRAL,
        **sampling(NAMES),
        **CONSTRAINTS,
        **MEDIA,
        "model": MODEL,
        "input": _INPUT,
        "instructions": text("Said before everything else, for this response alone."),
        "previous_response_id": text("A stored response that this one continues."),
        "store": flag("Keep the response; false keeps nothing of it."),
        "stream": flag("Send the answer as events, as it grows."),
        "stream_options": closed({"include_obfuscation": OFF}),
        "max_output_tokens": integer(0, 2**31, "Most tokens to generate."),
        "include": array(word(*INCLUDABLE)),
        "top_logprobs": integer(0, 64, "Also report so many likeliest tokens a position."),
        "text": closed({"format": _FORMAT, "verbosity": only("medium")}),
        **{name: TOOL_FIELDS[name] for name in ("functions", "function_call")},
        "tools": array(_TOOL, most=128),
        "tool_choice": _CHOICE,
        "parallel_tool_calls": flag("Whether an answer may call several tools."),
        "metadata": _METADATA,
        "user": USER,
        "safety_identifier": text("Who the client is, where `user` does not say so.", most=256),
        "prompt_cache_key": _SHORT,
        "service_tier": only("auto", "default"),
        "background": OFF,
        "truncation": only("disabled"),
        "prompt_cache_retention": only("in_memory"),
        "n": only(1),
        "cache_salt": SALT,
        "return_timing": flag("Tell the time of each stage, and what was cached."),
        "return_token_ids": flag("Tell the token ids of prompt and answer."),
        "priority": PRIORITY,
        "rid": text("The request's id; goes before the header's.", pattern="^[!-~]{1,128}$"),
    },
    need=("input",),
) | {"title": "Response"}
"""The body of `/v1/responses`."""

_ITEM = opened({"id": text(), "type": text()})
_ANSWER = opened(
    {
        "id": text(),
        "object": word("response"),
        "created_at": _COUNT,
        "status": word("completed", "incomplete", "failed", "in_progress"),
        "model": text(),
        "output": array(_ITEM),
        "usage": opened(
            {"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}
        ),
        "store": flag(),
        "previous_response_id": {"type": ["string", "null"]},
    }
)
_ID = query("id", text(), place="path")
_INCLUDE = tuple(query(name, array(word(*INCLUDABLE))) for name in ("include", "include[]"))
_ENDS: Schema = {"type": ["string", "null"]}

SURFACE: Surface = {
    "/v1/responses": {
        "post": generating(
            "Answer an input, perhaps behind an earlier response.", RESPONSES, _ANSWER
        )
    },
    "/v1/responses/{id}": {
        "get": Operation(
            summary="One of the caller's stored responses.",
            parameters=(
                _ID,
                *_INCLUDE,
                *(query(name, word("false")) for name in ("stream", "include_obfuscation")),
            ),
            answers={JSON: _ANSWER},
            refusals=("bad", "absent"),
        ),
        "delete": Operation(
            summary="Forget one response; later ones keep what they continue.",
            parameters=(_ID,),
            answers=json_answer(id=text(), object=word("response"), deleted={"const": True}),
            refusals=("absent",),
        ),
    },
    "/v1/responses/{id}/input_items": {
        "get": Operation(
            summary="What a stored response answers to, the latest first.",
            parameters=(
                _ID,
                query("order", word("asc", "desc")),
                query("after", text("The id of the last item of the page before.")),
                query("limit", integer(1, 100)),
                *_INCLUDE,
            ),
            answers=json_answer(
                object=word("list"),
                data=array(_ITEM),
                first_id=_ENDS,
                last_id=_ENDS,
                has_more=flag(),
            ),
            refusals=("bad", "absent"),
        )
    },
}
