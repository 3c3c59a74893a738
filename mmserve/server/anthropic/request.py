"""The bodies of `/v1/messages` and `/v1/messages/count_tokens` as `core.Request`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.core import BadRequest, Constraint, ConstraintRefused, ModelInfo, Request
from mmserve.server.anthropic.blocks import take_cache_mark, take_conversation
from mmserve.server.anthropic.tools import take_tools
from mmserve.server.chat.envelope import Envelope, take_handling
from mmserve.server.chat.tools import Tools
from mmserve.server.clients import Caller, client_of
from mmserve.server.fields import Body, boolean, integer, short_text, text, word
from mmserve.server.media import FindFile, MediaDefaults
from mmserve.server.sampling import (
    AskedForm,
    build_sampling,
    take_form,
    take_json_schema,
    take_sampling,
)
from mmserve.server.service import check_model

__all__ = ["NAMES", "MessagesCall", "count_request", "messages_call"]

NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop": "stop_sequences",
    "stop_patterns": "stop_regex",
}
"""Sampling fields as this API names them."""
_MAX_TOKENS = integer(0, 2**31)


@dataclass(frozen=True, slots=True)
class MessagesCall:
    """A request that has been read and checked."""

    envelope: Envelope
    request: Request
    tools: Tools
    form: AskedForm | None

    def refusal(self, error: ConstraintRefused) -> ConstraintRefused:
        """A refused constraint by the name of the field that the client sent. Pure."""
        return error if self.form is None else self.tools.refusal(error, self.form)


def messages_call(body: Body, caller: Caller, model: ModelInfo, find: FindFile) -> MessagesCall:
    """Read the whole body; `find` finds the files it names.

    Raises BadRequest for what is wrong, unknown or cannot be honoured, and NotFound.

    Changes: `body` is used up.
    """
    check_model(body, model)
    max_tokens = body.need("max_tokens", _MAX_TOKENS)
    envelope = _take_envelope(body, caller)
    turns = take_conversation(body, MediaDefaults.take(body, find))
    tools = take_tools(body)
    _take_neutral(body)
    shaped = body.take("output_config", _output_config, None)
    form = tools.form(take_form(body, {} if shaped is None else {"output_config": shaped}))
    body.neutral("n", allowed=(1,))
    values: dict[str, Any] = take_sampling(body, NAMES) | {
        "max_new_tokens": max_tokens,
        "constraint": None if form is None else form.constraint,
    }
    sampling = build_sampling(values, NAMES, model)
    body.finish()
    request = Request(
        request_id="",
        parts=turns,
        sampling=sampling,
        client=envelope.client,
        cache_salt=envelope.cache_salt,
        priority=envelope.priority,
        tools=tools.definitions,
    )
    return MessagesCall(envelope, request, tools, form)


def count_request(body: Body, caller: Caller, model: ModelInfo, find: FindFile) -> Request:
    """What `/v1/messages/count_tokens` asks to count. Raises as `messages_call`.

    Changes: `body` is used up.
    """
    check_model(body, model)
    turns = take_conversation(body, MediaDefaults.take(body, find))
    tools = take_tools(body)
    _take_neutral(body)
    body.take("output_config", _output_config, None)
    cache_salt = body.take("cache_salt", short_text, "")
    body.finish()
    client = client_of(caller, cache_salt=cache_salt)
    return Request(
        request_id="",
        parts=turns,
        client=client,
        cache_salt=cache_salt,
        tools=tools.definitions,
    )


def _take_envelope(body: Body, caller: Caller) -> Envelope:
    body.neutral("service_tier", allowed=("auto", "standard_only"))
    user = body.take("metadata", _user_id, "")
    is_stream = body.take("stream", boolean, default=False)
    return take_handling(body, caller, user=user, is_stream=is_stream, usage=(True, False))


def _take_neutral(body: Body) -> None:
    body.take("thinking", _no_thinking, None)
    body.neutral("speed", allowed=("standard",))
    for field in ("container", "diagnostics", "inference_geo"):
        body.neutral(field)
    take_cache_mark(body)


def _user_id(value: object, name: str) -> str:
    body = Body(value, name)
    user = body.take("user_id", short_text, "")
    body.finish()
    return user


def _no_thinking(value: object, name: str) -> None:
    body = Body(value, name)
    if body.need("type", text) != "disabled":
        field = body.name("type")
        message = f"{field} asks for thinking, which this server does not do"
        hint = 'leave thinking out, or send {"type": "disabled"}'
        raise BadRequest(message, field=field, reason="unsupported", hint=hint)
    body.finish()


def _output_config(value: object, name: str) -> Constraint | None:
    body = Body(value, name)
    body.neutral("effort")
    constraint = body.take("format", _format, None)
    body.finish()
    return constraint


def _format(value: object, name: str) -> Constraint:
    body = Body(value, name)
    body.need("type", word("json_schema"))
    schema = body.need("schema", take_json_schema)
    body.finish()
    return Constraint("json_schema", schema)
