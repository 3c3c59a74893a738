"""`/v1/systemone` as `/openapi.json` tells of it."""

from __future__ import annotations

from mmserve.server.describe.schema import (
    JSON,
    Operation,
    Schema,
    Surface,
    array,
    closed,
    either,
    flag,
    integer,
    number,
    only,
    opened,
    text,
    word,
)
from mmserve.server.describe.shared import MEDIA, MODEL, PRIORITY, SALT, USAGE, USER
from mmserve.server.openai.schema_messages import MESSAGES, PARTS

__all__ = ["SURFACE", "SYSTEM_ONE"]

_LIMIT = 10**9
_WHOLE = integer(-_LIMIT, _LIMIT)
_ABOUT: dict[str, Schema] = {
    "id": text("Repeated with the answer; its place if there is none.", least=1, most=256),
    "question": text("Behind the state; empty if the state asks."),
}
_OPTION = text(least=1)
_LABELS = array(
    closed({"label": _OPTION, "value": number(-_LIMIT, _LIMIT)}, need=("label", "value")),
    "What may answer, and what each stands for.",
    least=2,
    most=256,
)
_BOUNDS = {name: only(doc="The labels say it.") for name in ("min", "max")}
_QUESTIONS = array(
    either(
        closed({**_ABOUT, "type": word("yes_no")}, need=("type",)),
        closed(
            {
                **_ABOUT,
                "type": word("choice"),
                "choices": array(_OPTION, "What may answer.", least=2, most=256)
                | {"uniqueItems": True},
            },
            need=("type", "choices"),
        ),
        closed(
            {
                **_ABOUT,
                "type": word("score"),
                "min": _WHOLE,
                "max": _WHOLE,
                "labels": only(doc="The bounds say it."),
            },
            need=("type", "min", "max"),
        ),
        closed(
            {**_ABOUT, "type": word("score"), "labels": _LABELS, **_BOUNDS},
            need=("type", "labels"),
        ),
    ),
    "Each is answered by itself.",
    least=1,
    most=256,
)
_FIELDS: dict[str, Schema] = {
    **MEDIA,
    "model": MODEL,
    "questions": _QUESTIONS,
    "user": USER,
    "cache_salt": SALT,
    "priority": PRIORITY,
    "return_timing": flag("Tell the time of each stage, and what was cached."),
    "rid": text("The request's id; goes before the header's.", pattern="^[!-~]{1,128}$"),
}
_STATES: dict[str, Schema] = {
    "state": either(
        text(least=1),
        array(either(*PARTS), least=1),
        MESSAGES,
        doc="What the questions are about: a text, parts, or a conversation.",
    ),
    "messages": MESSAGES,
}


def _body(state: str) -> Schema:
    """A body whose state is in this field, and not in the other. Pure."""
    others = {name: only(doc="Another field has the state.") for name in _STATES}
    return closed({**others, state: _STATES[state], **_FIELDS}, need=(state, "questions"))


SYSTEM_ONE = either(*map(_body, _STATES)) | {"title": "SystemOne"}
"""The body of `/v1/systemone`: its state is in one of two fields."""

_ANSWER = opened(
    {
        "id": text(),
        "type": word("choice", "score", "yes_no"),
        "answer": {"type": ["string", "integer"]},
        "probabilities": {"type": "object", "additionalProperties": number(0, 1)},
    }
)

SURFACE: Surface = {
    "/v1/systemone": {
        "post": Operation(
            summary="Answer typed questions about one state.",
            body=SYSTEM_ONE,
            answers={
                JSON: opened(
                    {
                        "id": text(),
                        "object": word("systemone"),
                        "created": integer(0, 2**53),
                        "model": text(),
                        "answers": array(_ANSWER),
                        "usage": USAGE,
                    }
                )
            },
            refusals=("bad", "absent", "large", "left", "behind", "late"),
        )
    }
}
