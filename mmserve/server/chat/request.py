"""The body of `/v1/chat/completions` as one `core.Request`."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import (
    BadRequest,
    Constraint,
    ConstraintRefused,
    ModelInfo,
    Request,
    SamplingParams,
    Turn,
)
from mmserve.server.chat.envelope import Envelope, take_envelope
from mmserve.server.chat.messages import turns_of
from mmserve.server.chat.tools import Tools, take_tools
from mmserve.server.clients import Caller
from mmserve.server.fields import Body, boolean, integer
from mmserve.server.media import FindFile, MediaDefaults, no_file
from mmserve.server.sampling import (
    OPENAI_NAMES,
    AskedForm,
    build_sampling,
    take_openai_constraint,
    take_sampling,
)
from mmserve.server.service import check_model

__all__ = ["TOP_LOGPROBS", "ChatCall", "chat_call", "take_max_tokens"]

TOP_LOGPROBS = integer(0, 64)
_MAX_TOKENS = integer(0, 2**31)


@dataclass(frozen=True, slots=True)
class ChatCall:
    """A chat request that has been read and checked."""

    envelope: Envelope
    request: Request
    tools: Tools
    form: AskedForm | None = None

    def refusal(self, error: ConstraintRefused) -> ConstraintRefused:
        """A refused constraint by the name of the field that the client sent. Pure."""
        return error if self.form is None else self.tools.refusal(error, self.form)


def chat_call(
    body: Body, caller: Caller, model: ModelInfo, find: FindFile = no_file
) -> ChatCall:
    """Read the whole body; `find` finds the files it names.

    Raises BadRequest for what is wrong, unknown or cannot be honoured, and NotFound.

    Changes: `body` is used up.
    """
    check_model(body, model)
    envelope = take_envelope(body, caller)
    _take_neutral(body)
    media = MediaDefaults.take(body, find)
    turns = body.need("messages", lambda value, name: turns_of(value, name, media))
    tools = take_tools(body)
    form = tools.form(take_openai_constraint(body))
    sampling = _chat_sampling(body, model, None if form is None else form.constraint)
    body.finish()
    request = Request(
        request_id="",
        parts=(*turns, Turn("assistant", (), is_open=True)),
        sampling=sampling,
        client=envelope.client,
        cache_salt=envelope.cache_salt,
        priority=envelope.priority,
        tools=tools.definitions,
    )
    return ChatCall(envelope, request, tools, form)


def take_max_tokens(body: Body, default: int | None) -> int | None:
    """`max_tokens`, or `max_completion_tokens` in its place. Changes: both count as known."""
    older = body.take("max_tokens", _MAX_TOKENS, None)
    newer = body.take("max_completion_tokens", _MAX_TOKENS, None)
    if older is not None and newer is not None and older != newer:
        message = "max_tokens and max_completion_tokens differ"
        raise BadRequest(message, field="max_completion_tokens", reason="conflict")
    chosen = older if newer is None else newer
    return default if chosen is None else chosen


def _chat_sampling(
    body: Body, model: ModelInfo, constraint: Constraint | None
) -> SamplingParams:
    max_tokens = take_max_tokens(body, None)
    has_logprobs = body.take("logprobs", boolean, default=False)
    top_logprobs = body.take("top_logprobs", TOP_LOGPROBS, 0)
    if top_logprobs and not has_logprobs:
        message = "top_logprobs is given without logprobs: true"
        raise BadRequest(message, field="top_logprobs", reason="conflict")
    values = take_sampling(body, OPENAI_NAMES) | {
        "max_new_tokens": max_tokens,
        "return_logprobs": has_logprobs,
        "top_logprobs": top_logprobs,
        "constraint": constraint,
    }
    return build_sampling(values, OPENAI_NAMES, model)


def _take_neutral(body: Body) -> None:
    body.neutral("modalities", allowed=(["text"],))
    for field in ("audio", "prediction", "reasoning_effort", "verbosity", "web_search_options"):
        body.neutral(field)
