"""OpenAI's surfaces as `/openapi.json` tells of them: chat, completions, files, models."""

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
    USAGE,
    USER,
    sampling,
)
from mmserve.server.openai.schema_messages import MESSAGES, TOOL_FIELDS
from mmserve.server.sampling import OPENAI_NAMES

__all__ = ["CHAT", "COMPLETIONS", "ENVELOPE", "RESPONSE_FORMAT", "SURFACE"]

_MAX_TOKENS = integer(0, 2**31, "Most tokens to generate.")
_COUNT = integer(0, 2**53)

ENVELOPE: dict[str, Schema] = {
    "model": MODEL,
    "stream": flag("Send the answer as events, as it grows."),
    "stream_options": closed(
        {
            "include_usage": flag("One more event at the end, with the usage."),
            "include_obfuscation": OFF,
            "continuous_usage_stats": flag("Tell the usage so far in every event, too."),
        }
    ),
    "store": OFF,
    "metadata": {"type": "object", "description": "Has no effect here."},
    "service_tier": only("auto", "default"),
    "prompt_cache_key": only(),
    "safety_identifier": only(),
    "user": USER,
    "cache_salt": SALT,
    "return_timing": flag("Tell the time of each stage, and what was cached."),
    "return_token_ids": flag("Tell the token ids of prompt and answer."),
    "priority": PRIORITY,
    "rid": text("The request's id; goes before the header's.", pattern="^[!-~]{1,128}$"),
}
"""What chat and plain completions have in common."""

_NAMED_SCHEMA = closed(
    {
        "name": text(),
        "description": text(),
        "strict": flag(),
        "schema": {"type": ["object", "boolean"]},
    },
    need=("schema",),
)
RESPONSE_FORMAT = closed(
    {"type": word("text", "json_object", "json_schema"), "json_schema": _NAMED_SCHEMA},
    need=("type",),
    doc="The form of the answer; `json_schema` goes with the type of that name alone.",
)

_SAMPLING: dict[str, Schema] = {
    **sampling(OPENAI_NAMES),
    **CONSTRAINTS,
    "response_format": RESPONSE_FORMAT,
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
}

CHAT = closed(
    {
        **ENVELOPE,
        **_SAMPLING,
        **MEDIA,
        **TOOL_FIELDS,
        "messages": MESSAGES,
        "logprobs": flag("Report log-probabilities of the answer."),
        "top_logprobs": integer(0, 64, "Also report so many likeliest tokens a position."),
        "modalities": only(["text"]),
        **{
            name: only()
            for name in (
                "audio",
                "prediction",
                "reasoning_effort",
                "verbosity",
                "web_search_options",
            )
        },
    },
    need=("messages",),
) | {"title": "ChatCompletion"}
"""The body of `/v1/chat/completions`."""

_TOKEN_ID = integer(0, 2**31)
_PROMPT = either(
    text(),
    array(text(), least=1),
    array(_TOKEN_ID, least=1),
    array(array(_TOKEN_ID, least=1), least=1),
    doc="A text, token ids, or a list of either.",
)
COMPLETIONS = closed(
    {
        **ENVELOPE,
        **_SAMPLING,
        "prompt": _PROMPT,
        "echo": flag("Put the prompt before the answer."),
        "logprobs": integer(0, 64, "Report log-probabilities, with so many likeliest tokens."),
        "best_of": integer(1, 128, "Must be n; others are refused."),
        "suffix": only(""),
    },
    need=("prompt",),
) | {"title": "Completion"}
"""The body of `/v1/completions`."""


def _completion(kind: str, choice: Schema) -> Schema:
    return opened(
        {
            "id": text(),
            "object": word(kind),
            "created": _COUNT,
            "model": text(),
            "choices": array(choice),
            "usage": USAGE,
        }
    )


_REASON: Schema = {"type": ["string", "null"]}
_CHAT_CHOICE = opened(
    {
        "index": _COUNT,
        "message": opened({"role": word("assistant"), "content": {"type": ["string", "null"]}}),
        "finish_reason": _REASON,
    }
)
_TEXT_CHOICE = opened({"index": _COUNT, "text": text(), "finish_reason": _REASON})

_MODEL_ENTRY = opened(
    {"id": text(), "object": word("model"), "created": _COUNT, "owned_by": text()}
)
_FILE = opened(
    {
        "id": text(),
        "object": word("file"),
        "bytes": _COUNT,
        "created_at": _COUNT,
        "expires_at": _COUNT,
        "filename": text(),
        "purpose": text(),
        "status": text(),
    }
)
_PURPOSE = word("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
_FILE_ID = query("id", text(), place="path")
_BYTES: Schema = {"type": "string", "format": "binary"}
_UPLOAD: Schema = {
    "type": "object",
    "properties": {
        "file": {**_BYTES, "minLength": 1, "description": "A part with a filename."},
        "purpose": _PURPOSE,
        "expires_after[anchor]": word("created_at"),
        "expires_after[seconds]": integer(1, 2_592_000),
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}

SURFACE: Surface = {
    "/v1/chat/completions": {
        "post": generating(
            "Answer a conversation.", CHAT, _completion("chat.completion", _CHAT_CHOICE)
        )
    },
    "/v1/completions": {
        "post": generating(
            "Complete one or several prompts.",
            COMPLETIONS,
            _completion("text_completion", _TEXT_CHOICE),
        )
    },
    "/v1/models": {
        "get": Operation(
            summary="The one model served.",
            answers=json_answer(object=word("list"), data=array(_MODEL_ENTRY)),
        )
    },
    "/v1/models/{name:path}": {
        "get": Operation(
            summary="One model by its name.",
            parameters=(query("name", text(), place="path"),),
            answers={JSON: _MODEL_ENTRY},
            refusals=("absent",),
        )
    },
    "/v1/files": {
        "get": Operation(
            summary="The caller's files, the newest first.",
            parameters=(
                query("purpose", _PURPOSE),
                query("order", word("asc", "desc")),
                query("after", text("The id of the last file of the page before.")),
                query("limit", integer(1, 10_000)),
            ),
            answers=json_answer(
                object=word("list"), data=array(_FILE), has_more={"type": "boolean"}
            ),
            refusals=("bad",),
        ),
        "post": Operation(
            summary="Keep a picture or clip, to be named by id.",
            form=_UPLOAD,
            answers={JSON: _FILE},
            refusals=("bad", "large"),
        ),
    },
    "/v1/files/{id}": {
        "get": Operation(
            summary="One file's facts.",
            parameters=(_FILE_ID,),
            answers={JSON: _FILE},
            refusals=("absent",),
        ),
        "delete": Operation(
            summary="Forget one file.",
            parameters=(_FILE_ID,),
            answers=json_answer(id=text(), object=word("file"), deleted={"const": True}),
            refusals=("absent",),
        ),
    },
    "/v1/files/{id}/content": {
        "get": Operation(
            summary="One file's bytes.",
            parameters=(_FILE_ID,),
            answers={"application/octet-stream": _BYTES},
            refusals=("absent",),
        )
    },
}
