"""OpenAI's surfaces as `/openapi.json` tells of them: chat, completions, files, models."""

from __future__ import annotations

from mmserve.server.calls import MOST_ANSWERS
from mmserve.server.chat.schema import CHAT, ENVELOPE, SAMPLING
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared

__all__ = ["COMPLETIONS", "SURFACE"]

_COUNT = shape.integer(0, 2**53)

_TOKEN_ID = shape.integer(0, 2**31)
_PROMPT = shape.either(
    shape.text(),
    shape.array(shape.text(), least=1, most=MOST_ANSWERS),
    shape.array(_TOKEN_ID, least=1),
    shape.array(shape.array(_TOKEN_ID, least=1), least=1, most=MOST_ANSWERS),
    doc="A text, token ids, or a list of either.",
)
COMPLETIONS = shape.closed(
    {
        **ENVELOPE,
        **SAMPLING,
        "prompt": _PROMPT,
        "echo": shape.flag("Put the prompt before the answer."),
        "logprobs": shape.integer(
            0, 64, "Report log-probabilities, with so many likeliest tokens."
        ),
        "best_of": shape.integer(1, 128, "Must be n; others are refused."),
        "suffix": shape.only(""),
    },
    need=("prompt",),
) | {"title": "Completion"}
"""The body of `/v1/completions`."""


def _completion(kind: str, choice: shape.Schema) -> shape.Schema:
    return shape.opened(
        {
            "id": shape.text(),
            "object": shape.word(kind),
            "created": _COUNT,
            "model": shape.text(),
            "choices": shape.array(choice),
            "usage": shared.USAGE,
        }
    )


_REASON: shape.Schema = {"type": ["string", "null"]}
_CHAT_CHOICE = shape.opened(
    {
        "index": _COUNT,
        "message": shape.opened(
            {"role": shape.word("assistant"), "content": {"type": ["string", "null"]}}
        ),
        "finish_reason": _REASON,
    }
)
_TEXT_CHOICE = shape.opened({"index": _COUNT, "text": shape.text(), "finish_reason": _REASON})

_MODEL_ENTRY = shape.opened(
    {
        "id": shape.text(),
        "object": shape.word("model"),
        "created": _COUNT,
        "owned_by": shape.text(),
    }
)
_FILE = shape.opened(
    {
        "id": shape.text(),
        "object": shape.word("file"),
        "bytes": _COUNT,
        "created_at": _COUNT,
        "expires_at": _COUNT,
        "filename": shape.text(),
        "purpose": shape.text(),
        "status": shape.text(),
    }
)
_PURPOSE = shape.word("assistants", "batch", "evals", "fine-tune", "user_data", "vision")
_FILE_ID = shape.query("id", shape.text(), place="path")
_BYTES: shape.Schema = {"type": "string", "format": "binary"}
_UPLOAD: shape.Schema = {
    "type": "object",
    "properties": {
        "file": {**_BYTES, "minLength": 1, "description": "A part with a filename."},
        "purpose": _PURPOSE,
        "expires_after[anchor]": shape.word("created_at"),
        "expires_after[seconds]": shape.integer(1, 2_592_000),
    },
    "required": ["file", "purpose"],
    "additionalProperties": False,
}

SURFACE: shape.Surface = {
    "/v1/chat/completions": {
        "post": shape.generating(
            "Answer a conversation.", CHAT, _completion("chat.completion", _CHAT_CHOICE)
        )
    },
    "/v1/completions": {
        "post": shape.generating(
            "Complete one or several prompts.",
            COMPLETIONS,
            _completion("text_completion", _TEXT_CHOICE),
        )
    },
    "/v1/models": {
        "get": shape.Operation(
            summary="The one model served.",
            answers=shape.json_answer(
                object=shape.word("list"), data=shape.array(_MODEL_ENTRY)
            ),
        )
    },
    "/v1/models/{name:path}": {
        "get": shape.Operation(
            summary="One model by its name.",
            parameters=(shape.query("name", shape.text(), place="path"),),
            answers={shape.JSON: _MODEL_ENTRY},
            refusals=("absent",),
        )
    },
    "/v1/files": {
        "get": shape.Operation(
            summary="The caller's files, the newest first.",
            parameters=(
                shape.query("purpose", _PURPOSE),
                shape.query("order", shape.word("asc", "desc")),
                shape.query("after", shape.text("The id of the last file of the page before.")),
                shape.query("limit", shape.integer(1, 10_000)),
            ),
            answers=shape.json_answer(
                object=shape.word("list"), data=shape.array(_FILE), has_more={"type": "boolean"}
            ),
            refusals=("bad",),
        ),
        "post": shape.Operation(
            summary="Keep a picture or clip, to be named by id.",
            form=_UPLOAD,
            answers={shape.JSON: _FILE},
            refusals=("bad",),
        ),
    },
    "/v1/files/{id}": {
        "get": shape.Operation(
            summary="One file's facts.",
            parameters=(_FILE_ID,),
            answers={shape.JSON: _FILE},
            refusals=("absent",),
        ),
        "delete": shape.Operation(
            summary="Forget one file.",
            parameters=(_FILE_ID,),
            answers=shape.json_answer(
                id=shape.text(), object=shape.word("file"), deleted={"const": True}
            ),
            refusals=("absent",),
        ),
    },
    "/v1/files/{id}/content": {
        "get": shape.Operation(
            summary="One file's bytes.",
            parameters=(_FILE_ID,),
            answers={"application/octet-stream": _BYTES},
            refusals=("absent",),
        )
    },
}
