"""The Responses API as `/openapi.json` tells of it."""

from __future__ import annotations

from mmserve.server.chat.schema_messages import (
    CONTENT,
    NAME,
    PARAMETERS,
    PARTS,
    TOOL_FIELDS,
)
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared
from mmserve.server.openai.responses_request import ELSEWHERE, INCLUDABLE, NAMES, NEUTRAL

__all__ = ["RESPONSES", "SURFACE"]

_COUNT = shape.integer(0, 2**53)
_SHORT = shape.text(most=256)
_STATES = shape.word("in_progress", "completed", "incomplete")
_HEAD: dict[str, shape.Schema] = {"id": _SHORT, "status": _STATES}
_ANY: shape.Schema = {"description": "Has no effect here."}
_OUTPUT_TEXT = shape.closed(
    {
        "type": shape.word("output_text"),
        "text": shape.text(),
        "annotations": shape.only([]),
        "logprobs": _ANY,
        "parsed": _ANY,
    },
    need=("type", "text"),
)
_CONTENT = shape.either(
    shape.text(), shape.array(shape.either(*PARTS, _OUTPUT_TEXT)), doc=CONTENT["description"]
)
_MESSAGE = shape.closed(
    {
        **_HEAD,
        "type": shape.word("message"),
        "role": shape.word("user", "assistant", "system", "developer"),
        "content": _CONTENT,
        "phase": shape.only("final_answer"),
    },
    need=("role", "content"),
)
_CALL = shape.closed(
    {
        **_HEAD,
        "type": shape.word("function_call"),
        "call_id": _SHORT,
        "name": NAME,
        "arguments": shape.text("A JSON object as text."),
        "parsed_arguments": _ANY,
        "async": shape.OFF,
        **{field: shape.only() for field in ("caller", "namespace", "created_by")},
    },
    need=("type", "call_id", "name", "arguments"),
)
_RESULT = shape.closed(
    {
        **_HEAD,
        "type": shape.word("function_call_output"),
        "call_id": shape.text("The id of a call before it.", most=256),
        "output": _CONTENT,
        **{field: shape.only() for field in ("caller", "namespace", "name", "created_by")},
    },
    need=("type", "call_id", "output"),
)
_REFERENCE = shape.closed(
    {
        "type": shape.word("item_reference"),
        "id": shape.text("The id of an item of a stored response."),
    },
    need=("type", "id"),
)
_INPUT = shape.either(
    shape.text(),
    shape.array(shape.either(_MESSAGE, _CALL, _RESULT, _REFERENCE), least=1),
    doc="A text of the user, or items in order.",
)

_NESTED = shape.only(doc="How the chat API writes it; refused.")
_TOOL = shape.closed(
    {
        "type": shape.word("function"),
        "name": NAME,
        "description": shape.text(),
        "parameters": PARAMETERS,
        "strict": shape.flag(),
        "function": _NESTED,
        "allowed_callers": shape.only(),
        "output_schema": shape.only(),
        "async": shape.OFF,
        "defer_loading": shape.OFF,
    },
    need=("type", "name"),
)
_NAMED = shape.closed(
    {"type": shape.word("function"), "name": NAME, "function": _NESTED}, need=("type", "name")
)
_CHOICE = shape.either(
    shape.word("none", "auto", "required"),
    _NAMED,
    shape.closed(
        {
            "type": shape.word("allowed_tools"),
            "mode": shape.word("auto", "required"),
            "tools": shape.array(_NAMED, least=1),
        },
        need=("type", "mode", "tools"),
    ),
)
_FORMAT = shape.either(
    shape.closed({"type": shape.word("text", "json_object")}, need=("type",)),
    shape.closed(
        {
            "type": shape.word("json_schema"),
            "name": shape.text(),
            "description": shape.text(),
            "strict": shape.flag(),
            "schema": {"type": ["object", "boolean"]},
            "json_schema": _NESTED,
        },
        need=("type", "schema"),
    ),
)
_METADATA: shape.Schema = {
    "type": "object",
    "additionalProperties": shape.text(most=512),
    "propertyNames": {"maxLength": 64},
    "maxProperties": 16,
    "description": "Texts by name, which the response repeats.",
}
_REFUSED = {name: shape.only(doc="Not a field of this API; refused.") for name in ELSEWHERE}

RESPONSES = shape.closed(
    {
        **_REFUSED,
        **{name: shape.only() for name in NEUTRAL},
        **shared.sampling(NAMES),
        **shared.CONSTRAINTS,
        **shared.MEDIA,
        "model": shared.MODEL,
        "input": _INPUT,
        "instructions": shape.text("Said before everything else, for this response alone."),
        "previous_response_id": shape.text("A stored response that this one continues."),
        "store": shape.flag("Keep the response; false keeps nothing of it."),
        "stream": shape.flag("Send the answer as events, as it grows."),
        "stream_options": shape.closed({"include_obfuscation": shape.OFF}),
        "max_output_tokens": shape.integer(0, 2**31, "Most tokens to generate."),
        "include": shape.array(shape.word(*INCLUDABLE)),
        "top_logprobs": shape.integer(
            0, 64, "Also report so many likeliest tokens a position."
        ),
        "text": shape.closed({"format": _FORMAT, "verbosity": shape.only("medium")}),
        **{name: TOOL_FIELDS[name] for name in ("functions", "function_call")},
        "tools": shape.array(_TOOL, most=128),
        "tool_choice": _CHOICE,
        "parallel_tool_calls": shape.flag("Whether an answer may call several tools."),
        "metadata": _METADATA,
        "user": shared.USER,
        "safety_identifier": shape.text(
            "Who the client is, where `user` does not say so.", most=256
        ),
        "prompt_cache_key": _SHORT,
        "service_tier": shape.only("auto", "default"),
        "background": shape.OFF,
        "truncation": shape.only("disabled"),
        "prompt_cache_retention": shape.only("in_memory"),
        "n": shape.only(1),
        **shared.HANDLING,
    },
    need=("input",),
) | {"title": "Response"}
"""The body of `/v1/responses`."""

_ITEM = shape.opened({"id": shape.text(), "type": shape.text()})
_ANSWER = shape.opened(
    {
        "id": shape.text(),
        "object": shape.word("response"),
        "created_at": _COUNT,
        "status": shape.word("completed", "incomplete", "failed", "in_progress"),
        "model": shape.text(),
        "output": shape.array(_ITEM),
        "usage": shape.opened(
            {"input_tokens": _COUNT, "output_tokens": _COUNT, "total_tokens": _COUNT}
        ),
        "store": shape.flag(),
        "previous_response_id": {"type": ["string", "null"]},
    }
)
_ID = shape.query("id", shape.text(), place="path")
_INCLUDE = tuple(
    shape.query(name, shape.array(shape.word(*INCLUDABLE))) for name in ("include", "include[]")
)
_ENDS: shape.Schema = {"type": ["string", "null"]}

SURFACE: shape.Surface = {
    "/v1/responses": {
        "post": shape.generating(
            "Answer an input, perhaps behind an earlier response.", RESPONSES, _ANSWER
        )
    },
    "/v1/responses/{id}": {
        "get": shape.Operation(
            summary="One of the caller's stored responses.",
            parameters=(
                _ID,
                *_INCLUDE,
                *(
                    shape.query(name, shape.word("false"))
                    for name in ("stream", "include_obfuscation")
                ),
            ),
            answers={shape.JSON: _ANSWER},
            refusals=("bad", "absent"),
        ),
        "delete": shape.Operation(
            summary="Forget one response; later ones keep what they continue.",
            parameters=(_ID,),
            answers=shape.json_answer(
                id=shape.text(), object=shape.word("response"), deleted={"const": True}
            ),
            refusals=("absent",),
        ),
    },
    "/v1/responses/{id}/input_items": {
        "get": shape.Operation(
            summary="What a stored response answers to, the latest first.",
            parameters=(
                _ID,
                shape.query("order", shape.word("asc", "desc")),
                shape.query("after", shape.text("The id of the last item of the page before.")),
                shape.query("limit", shape.integer(1, 100)),
                *_INCLUDE,
            ),
            answers=shape.json_answer(
                object=shape.word("list"),
                data=shape.array(_ITEM),
                first_id=_ENDS,
                last_id=_ENDS,
                has_more=shape.flag(),
            ),
            refusals=("bad", "absent"),
        )
    },
}
