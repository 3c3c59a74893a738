"""`/v1/systemone` as `/openapi.json` tells of it."""

from __future__ import annotations

from mmserve.server.chat.schema_messages import MESSAGES, PARTS
from mmserve.server.describe import schema as shape
from mmserve.server.describe import shared

__all__ = ["SURFACE", "SYSTEM_ONE"]

_LIMIT = 10**9
_HANDLED = ("cache_salt", "priority", "return_timing", "rid")
_WHOLE = shape.integer(-_LIMIT, _LIMIT)
_ABOUT: dict[str, shape.Schema] = {
    "id": shape.text(
        "Repeated with the answer; its place if there is none.", least=1, most=256
    ),
    "question": shape.text("Behind the state; empty if the state asks."),
}
_OPTION = shape.text(least=1)
_LABELS = shape.array(
    shape.closed(
        {"label": _OPTION, "value": shape.number(-_LIMIT, _LIMIT)}, need=("label", "value")
    ),
    "What may answer, and what each stands for.",
    least=2,
    most=256,
)
_BOUNDS = {name: shape.only(doc="The labels say it.") for name in ("min", "max")}
_QUESTIONS = shape.array(
    shape.either(
        shape.closed({**_ABOUT, "type": shape.word("yes_no")}, need=("type",)),
        shape.closed(
            {
                **_ABOUT,
                "type": shape.word("choice"),
                "choices": shape.array(_OPTION, "What may answer.", least=2, most=256)
                | {"uniqueItems": True},
            },
            need=("type", "choices"),
        ),
        shape.closed(
            {
                **_ABOUT,
                "type": shape.word("score"),
                "min": _WHOLE,
                "max": _WHOLE,
                "labels": shape.only(doc="The bounds say it."),
            },
            need=("type", "min", "max"),
        ),
        shape.closed(
            {**_ABOUT, "type": shape.word("score"), "labels": _LABELS, **_BOUNDS},
            need=("type", "labels"),
        ),
    ),
    "Each is answered by itself.",
    least=1,
    most=256,
)
_FIELDS: dict[str, shape.Schema] = {
    **shared.MEDIA,
    "model": shared.MODEL,
    "questions": _QUESTIONS,
    "user": shared.USER,
    **{name: shared.HANDLING[name] for name in _HANDLED},
}
_STATES: dict[str, shape.Schema] = {
    "state": shape.either(
        shape.text(least=1),
        shape.array(shape.either(*PARTS), least=1),
        MESSAGES,
        doc="What the questions are about: a text, parts, or a conversation.",
    ),
    "messages": MESSAGES,
}


def _body(state: str) -> shape.Schema:
    """A body whose state is in this field, and not in the other. Pure."""
    others = {name: shape.only(doc="Another field has the state.") for name in _STATES}
    return shape.closed({**others, state: _STATES[state], **_FIELDS}, need=(state, "questions"))


SYSTEM_ONE = shape.either(*map(_body, _STATES)) | {"title": "SystemOne"}
"""The body of `/v1/systemone`: its state is in one of two fields."""

_ANSWER = shape.opened(
    {
        "id": shape.text(),
        "type": shape.word("choice", "score", "yes_no"),
        "answer": {"type": ["string", "integer"]},
        "probabilities": {"type": "object", "additionalProperties": shape.number(0, 1)},
    }
)

SURFACE: shape.Surface = {
    "/v1/systemone": {
        "post": shape.Operation(
            summary="Answer typed questions about one state.",
            body=SYSTEM_ONE,
            answers={
                shape.JSON: shape.opened(
                    {
                        "id": shape.text(),
                        "object": shape.word("systemone"),
                        "created": shape.integer(0, 2**53),
                        "model": shape.text(),
                        "answers": shape.array(_ANSWER),
                        "usage": shared.USAGE,
                    }
                )
            },
            refusals=("bad", "absent", "left", "behind", "late"),
        )
    }
}
