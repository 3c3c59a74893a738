"""The body of `/v1/responses` as one `core.Request`, and what its response repeats of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.core import (
    BadRequest,
    Constraint,
    ModelInfo,
    Request,
    SamplingParams,
    TextPart,
    Turn,
)
from mmserve.server.chat.envelope import TIERS, Envelope, take_handling
from mmserve.server.chat.request import TOP_LOGPROBS, ChatCall
from mmserve.server.chat.tools import take_tools
from mmserve.server.clients import Caller
from mmserve.server.conversation_store import Conversation
from mmserve.server.fields import (
    Body,
    anything,
    boolean,
    list_of,
    short_text,
    text,
    word,
    wrong,
)
from mmserve.server.media import FindFile, MediaDefaults, no_file
from mmserve.server.openai.responses_items import (
    Refer,
    check_results,
    items_of,
    turns_of_items,
)
from mmserve.server.openai.responses_tools import FLAT, listed_tools
from mmserve.server.sampling import (
    OPENAI_NAMES,
    build_sampling,
    take_form,
    take_named_schema,
    take_sampling,
)
from mmserve.server.service import check_model

__all__ = [
    "ELSEWHERE",
    "INCLUDABLE",
    "NAMES",
    "NEUTRAL",
    "Recall",
    "ResponsesCall",
    "Sender",
    "responses_call",
]

Recall = Callable[[str, str], Conversation]
"""Takes a response's id and the field that names it; gives its conversation, or NotFound."""

NAMES: Mapping[str, str] = {**OPENAI_NAMES, "max_new_tokens": "max_output_tokens"}
"""Sampling fields as this API names them."""
_LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (
    _LOGPROBS,
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
"""Pictures are always listed as they were sent; items of the other kinds are never made."""
ELSEWHERE: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "logprobs": f'include: ["{_LOGPROBS}"]',
    "conversation": "previous_response_id",
}
"""Fields of other APIs, and what this one has in their place."""
NEUTRAL = (
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
"""Fields that may be there, and say nothing."""
_MAX_PAIRS, _MAX_KEY, _MAX_VALUE = 16, 64, 512


@dataclass(frozen=True, slots=True)
class Sender:
    """Who asks, and what may be named: earlier responses, items of these, and files."""

    caller: Caller
    recall: Recall
    refer: Refer
    find: FindFile = no_file


@dataclass(frozen=True, slots=True)
class ResponsesCall:
    """A request that has been read and checked.

    Args:
        chat: the same as a chat request.
        said: its input, behind the conversation that it continues.
        echo: fields of the response that repeat it.
        store: what it says of being kept.
    """

    chat: ChatCall
    said: Conversation
    echo: Mapping[str, Any]
    store: bool | None


def responses_call(body: Body, sender: Sender, model: ModelInfo) -> ResponsesCall:
    """Read the whole body.

    Raises BadRequest for what is wrong, unknown or cannot be honoured, and NotFound.

    Changes: `body` is used up.
    """
    check_model(body, model)
    _take_neutral(body)
    envelope, identity = _take_envelope(body, sender.caller)
    before = body.take("previous_response_id", _recalled(sender.recall), None)
    said = _take_input(body, sender, before)
    instructions = body.take("instructions", text, None)
    tools = take_tools(body, FLAT)
    form = tools.form(take_form(body, body.take("text", _text_form, {})))
    sampling = _take_sampling(body, model, None if form is None else form.constraint)
    store = body.take("store", boolean, None)
    echo = {
        "instructions": instructions,
        "max_output_tokens": sampling.max_new_tokens,
        "metadata": body.take("metadata", _metadata, {}),
        "parallel_tool_calls": body.take("parallel_tool_calls", boolean, default=True),
        "previous_response_id": body.take("previous_response_id", text, None),
        "temperature": sampling.temperature,
        "text": _text_echo(body),
        "tool_choice": body.take("tool_choice", anything, "auto"),
        "tools": listed_tools(body.take("tools", anything, None)),
        "top_logprobs": sampling.top_logprobs,
        "top_p": sampling.top_p,
        **identity,
    }
    body.finish()
    request = Request(
        request_id="",
        parts=(*_instructed(instructions), *_turns(said), Turn("assistant", (), is_open=True)),
        sampling=sampling,
        client=envelope.client,
        cache_salt=envelope.cache_salt,
        priority=envelope.priority,
        tools=tools.definitions,
    )
    return ResponsesCall(ChatCall(envelope, request, tools, form), said, echo, store)


def _take_neutral(body: Body) -> None:
    for field, newer in ELSEWHERE.items():
        body.take(field, _elsewhere(newer), None)
    body.neutral("n", allowed=(1,))
    body.neutral("background", allowed=(False,))
    body.neutral("truncation", allowed=("disabled",))
    body.neutral("service_tier", allowed=TIERS)
    body.neutral("prompt_cache_retention", allowed=("in_memory",))
    for field in NEUTRAL:
        body.neutral(field)


def _elsewhere(instead: str) -> Callable[[object, str], None]:
    def check(_value: object, name: str) -> None:
        message = f"{name} is not a field of this API"
        raise BadRequest(message, field=name, reason="unsupported", hint=f"send {instead}")

    return check


def _take_envelope(body: Body, caller: Caller) -> tuple[Envelope, dict[str, Any]]:
    """How the request is handled, and what it says of who sends it."""
    is_stream = body.take("stream", boolean, default=False)
    if body.take("stream_options", _stream_options, None) is not None and not is_stream:
        message = "stream_options is given without stream: true"
        raise BadRequest(message, field="stream_options", reason="conflict")
    identity = {
        field: body.take(field, short_text, None)
        for field in ("user", "safety_identifier", "prompt_cache_key")
    }
    user = identity["user"] or identity["safety_identifier"] or ""
    return take_handling(body, caller, user=user, is_stream=is_stream), identity


def _stream_options(value: object, name: str) -> bool:
    options = Body(value, name)
    options.neutral("include_obfuscation", allowed=(False,))
    options.finish()
    return True


def _recalled(recall: Recall) -> Callable[[object, str], Conversation]:
    return lambda value, name: recall(text(value, name), name)


def _take_input(body: Body, sender: Sender, before: Conversation | None) -> Conversation:
    media = MediaDefaults.take(body, sender.find)
    items = body.need("input", lambda value, name: items_of(value, name, media, sender.refer))
    check_results(items, body.name("input"), () if before is None else _turns(before))
    listed = tuple(item.listed for item in items)
    return Conversation.new(before, turns_of_items(items), listed)


def _turns(conversation: Conversation) -> tuple[Turn, ...]:
    return tuple(t for stretch in conversation.from_the_start() for t in stretch.turns)


def _instructed(instructions: str | None) -> tuple[Turn, ...]:
    """They hold for one response, and stand before everything that was said."""
    return (Turn("system", (TextPart(instructions),)),) if instructions else ()


def _take_sampling(
    body: Body, model: ModelInfo, constraint: Constraint | None
) -> SamplingParams:
    included = body.take("include", list_of(word(*INCLUDABLE)), ())
    has_logprobs = _LOGPROBS in included
    top_logprobs = body.take("top_logprobs", TOP_LOGPROBS, 0)
    if top_logprobs and not has_logprobs:
        message = "top_logprobs is given, and log-probabilities are not asked for"
        hint = f'send include: ["{_LOGPROBS}"], too'
        raise BadRequest(message, field="top_logprobs", reason="conflict", hint=hint)
    values = {"max_new_tokens": None, **take_sampling(body, NAMES)} | {
        "return_logprobs": has_logprobs,
        "top_logprobs": top_logprobs,
        "constraint": constraint,
    }
    return build_sampling(values, NAMES, model)


def _text_form(value: object, name: str) -> dict[str, Constraint]:
    """The constraint that `text.format` asks for, by that name."""
    body = Body(value, name)
    body.neutral("verbosity", allowed=("medium",))
    constraint = body.take("format", _format, None)
    body.finish()
    return {} if constraint is None else {f"{name}.format": constraint}


def _format(value: object, name: str) -> Constraint | None:
    body = Body(value, name)
    kind = body.need("type", word("text", "json_object", "json_schema"))
    constraint: Constraint | None = None
    if kind == "json_object":
        constraint = Constraint("json_object", "")
    elif kind == "json_schema":
        body.take("json_schema", _nested_schema, None)
        constraint = Constraint("json_schema", take_named_schema(body))
    body.finish()
    return constraint


def _nested_schema(_value: object, name: str) -> None:
    message = f"{name} is how the chat API writes a format"
    hint = "put name and schema beside type"
    raise BadRequest(message, field=name, reason="unsupported", hint=hint)


def _text_echo(body: Body) -> dict[str, Any]:
    asked = body.take("text", anything, None)
    shape = asked.get("format") if isinstance(asked, dict) else None
    return {"format": shape or {"type": "text"}, "verbosity": "medium"}


def _metadata(value: object, name: str) -> dict[str, str]:
    """At most 16 short texts by short names."""
    allowed = f"at most {_MAX_PAIRS} texts of {_MAX_VALUE} characters by names of {_MAX_KEY}"
    if not isinstance(value, dict) or len(value) > _MAX_PAIRS:
        raise wrong(name, value, allowed)
    for key, words in value.items():
        if len(key) > _MAX_KEY or not isinstance(words, str) or len(words) > _MAX_VALUE:
            raise wrong(f"{name}.{key[:_MAX_KEY]}", words, allowed)
    return value
