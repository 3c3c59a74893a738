"""The body of `/v1/systemone`: a state, and one `core.Request` for each question about it.

The requests have the state's turns in common, to the letter and to the picture. So the engine
sees one prefix: whatever of it is fetched, decoded, encoded or computed, is so for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmserve.core import (
    BadRequest,
    BytesSource,
    FramesSource,
    ImagePart,
    ModelInfo,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.server.chat.messages import ContentPart, parts_of, turns_of
from mmserve.server.clients import Caller, client_of
from mmserve.server.fields import Body, boolean, integer, short_text, text, wrong
from mmserve.server.media import FindFile, MediaDefaults, decode_base64
from mmserve.server.service import check_model
from mmserve.server.systemone.questions import Question, take_questions

__all__ = ["SystemOneCall", "systemone_call"]

_PRIORITY = integer(-(2**31), 2**31)
_SCORED = SamplingParams(max_new_tokens=0)


@dataclass(frozen=True, slots=True)
class SystemOneCall:
    """A request that has been read and checked: `requests` stand in the questions' order."""

    questions: tuple[Question, ...]
    requests: tuple[Request, ...]
    return_timing: bool
    rid: str | None

    @property
    def distant_media(self) -> list[ImagePart | VideoPart]:
        """Media of the state that come over the network. Pure."""
        parts = [part for turn in self.requests[0].parts for part in _media_of(turn)]
        return [part for part in parts if _is_distant(part)]


def systemone_call(
    body: Body, caller: Caller, model: ModelInfo, find: FindFile
) -> SystemOneCall:
    """Read the whole body; `find` finds the files it names.

    Raises BadRequest for what is wrong or unknown, and NotFound. Cost: decodes base64.

    Changes: `body` is used up.
    """
    check_model(body, model)
    state = tuple(
        _with_bytes(turn) for turn in _take_state(body, MediaDefaults.take(body, find))
    )
    questions = body.need("questions", take_questions)
    user = body.take("user", short_text, "")
    cache_salt = body.take("cache_salt", short_text, "")
    shared: dict[str, Any] = {
        "request_id": "",
        "sampling": _SCORED,
        "client": client_of(caller, user=user, cache_salt=cache_salt),
        "cache_salt": cache_salt,
        "priority": body.take("priority", _PRIORITY, 0),
    }
    return_timing = body.take("return_timing", boolean, default=False)
    rid = body.take("rid", text, None)
    body.finish()
    requests = tuple(
        Request(parts=_asked(state, question.words), options=question.texts, **shared)
        for question in questions
    )
    return SystemOneCall(questions, requests, return_timing, rid)


def _take_state(body: Body, defaults: MediaDefaults) -> tuple[Turn, ...]:
    """The turns of `state` or `messages`, of which one must be there."""
    both = body.has("state") and body.has("messages")
    if both or not (body.has("state") or body.has("messages")):
        message = "state and messages are both given" if both else "state is missing"
        hint = "send the state as text, as content parts or as chat messages"
        raise BadRequest(message, field="state", reason="missing", hint=hint)

    def read(value: object, name: str) -> tuple[Turn, ...]:
        is_turns = isinstance(value, list) and any(_is_message(item) for item in value)
        if name == "messages" or is_turns:
            return turns_of(value, name, defaults)
        parts = parts_of(value, name, defaults)
        if not parts:
            raise wrong(name, value, "a text, content parts or chat messages")
        return (Turn("user", parts),)

    turns: tuple[Turn, ...] = body.take("state", read, ())
    return turns + body.take("messages", read, ())


def _is_message(item: object) -> bool:
    return isinstance(item, dict) and "role" in item


def _asked(state: tuple[Turn, ...], words: str) -> tuple[Turn, ...]:
    """The state with a question behind it, and the turn in which the options stand.

    Without words the state asks: if it ends with the assistant's turn, options go on there.
    """
    last = state[-1]
    if not words:
        if last.role == "assistant" and not last.tool_calls:
            return (*state[:-1], replace(last, is_open=True))
        return (*state, Turn("assistant", (), is_open=True))
    if last.role == "user":
        between = _between(last.parts)
        turns = (*state[:-1], replace(last, parts=(*last.parts, *between, TextPart(words))))
    else:
        turns = (*state, Turn("user", (TextPart(words),)))
    return (*turns, Turn("assistant", (), is_open=True))


def _between(parts: Sequence[ContentPart]) -> tuple[TextPart, ...]:
    """A new line behind text that does not end with one; nothing behind a picture or clip."""
    last = parts[-1] if parts else None
    is_joined = isinstance(last, TextPart) and last.text and not last.text[-1].isspace()
    return (TextPart("\n"),) if is_joined else ()


def _media_of(part: object) -> tuple[ImagePart | VideoPart, ...]:
    inner = part.parts if isinstance(part, Turn) else (part,)
    return tuple(one for one in inner if isinstance(one, ImagePart | VideoPart))


def _is_distant(part: ImagePart | VideoPart) -> bool:
    source = part.source
    return isinstance(source, UrlSource) and source.url[:5].lower() in ("http:", "https")


def _with_bytes(turn: Turn) -> Turn:
    """The turn with data: addresses read, so that it is done once for all questions."""
    return replace(turn, parts=tuple(map(_read, turn.parts)))


def _read(part: ContentPart) -> ContentPart:
    if not isinstance(part, ImagePart | VideoPart) or isinstance(part.source, FramesSource):
        return part
    if not isinstance(part.source, UrlSource) or part.source.url[:5].lower() != "data:":
        return part
    head, _, words = part.source.url.partition(",")
    if not head.lower().endswith(";base64"):
        return part
    try:
        content = decode_base64(words, "state")
    except BadRequest:
        return part  # the media plane reads more spellings, or says what is wrong
    return replace(part, source=BytesSource(content))
