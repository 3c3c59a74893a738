"""Anthropic's messages as turns.

    system           text or text blocks                    a system turn
    user             text, pictures, clips                  a user turn
                     tool_result                            a tool's turn, where it stands
    assistant        text, tool_use                         an assistant's turn with its calls
                     as the last message                    open: the answer continues it

Messages of one role in a row are one turn. `cache_control` changes nothing: what was seen once
stays cached by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

from mmserve.core import BadRequest, TextPart, ToolCall, Turn
from mmserve.server.chat.messages import READERS, ContentPart
from mmserve.server.chat.tools import check_depth
from mmserve.server.fields import Body, boolean, list_of, text, word, wrong
from mmserve.server.media import MediaDefaults

__all__ = ["take_cache_mark", "take_conversation"]

Block = ContentPart | ToolCall | Turn
"""A turn among blocks is a tool's result."""
_Reader = Callable[[Body, MediaDefaults], Block]
_ERROR = "Error: "


def take_conversation(body: Body, defaults: MediaDefaults) -> tuple[Turn, ...]:
    """`system` and `messages`, and the open turn to be answered.

    Raises BadRequest and NotFound. Changes: the fields count as known.
    """
    system = body.take(
        "system", lambda value, name: _content(value, name, defaults, _SYSTEM), ()
    )
    reader = list_of(lambda item, name: _message(item, name, defaults))
    messages = body.need("messages", reader)
    name = body.name("messages")
    if not messages:
        raise wrong(name, [], "a list of at least one message")
    _check_results(messages, name)
    turns = _joined(turn for message in messages for turn in message)
    if turns and turns[-1].role == "assistant":
        turns[-1] = _continued(turns[-1], f"{name}[{len(messages) - 1}]")
    else:
        turns.append(Turn("assistant", (), is_open=True))
    return tuple([*_turns("system", system), *turns] if system else turns)


def take_cache_mark(body: Body) -> None:
    """Let `cache_control` pass, if it is a mark. Changes: the field counts as known."""
    body.take("cache_control", _cache_mark, None)


def _cache_mark(value: object, name: str) -> None:
    mark = Body(value, name)
    mark.need("type", word("ephemeral"))
    mark.take("ttl", word("5m", "1h"), None)
    mark.finish()


def _message(value: object, name: str, defaults: MediaDefaults) -> tuple[Turn, ...]:
    body = Body(value, name)
    role = body.need("role", word(*_BY_ROLE))
    readers = _BY_ROLE[role]
    blocks = body.need("content", lambda item, where: _content(item, where, defaults, readers))
    body.finish()
    return _turns(role, blocks)


def _content(
    value: object, name: str, defaults: MediaDefaults, readers: dict[str, _Reader]
) -> tuple[Block, ...]:
    if isinstance(value, str):
        return (TextPart(value),) if value else ()
    if not isinstance(value, list):
        raise wrong(name, value, "a string or a list of blocks")
    return list_of(lambda item, where: _block(item, where, defaults, readers))(value, name)


def _block(
    value: object, name: str, defaults: MediaDefaults, readers: dict[str, _Reader]
) -> Block:
    body = Body(value, name)
    kind = body.need("type", text)
    reader = readers.get(kind)
    if reader is None:
        field = body.name("type")
        message = f"{field} names no kind of block that is served here"
        hint = f"allowed is {', '.join(readers)}"
        raise BadRequest(message, field=field, reason="value", hint=hint)
    block = reader(body, defaults)
    take_cache_mark(body)
    body.finish()
    return block


def _text(body: Body, _defaults: MediaDefaults) -> Block:
    body.neutral("citations", allowed=([],))
    return TextPart(body.need("text", text))


def _tool_use(body: Body, _defaults: MediaDefaults) -> Block:
    body.neutral("caller", allowed=({"type": "direct"},))
    body.neutral("toolset_name")
    return ToolCall(body.need("id", text), body.need("name", text), body.need("input", _input))


def _input(value: object, name: str) -> str:
    if not isinstance(value, dict):
        raise wrong(name, value, "an object")
    check_depth(value, name)
    return json.dumps(value, ensure_ascii=False)


def _tool_result(body: Body, defaults: MediaDefaults) -> Block:
    """A result; one that is an error begins by saying so, as the model sees no more of it."""
    call_id = body.need("tool_use_id", text)
    is_error = body.take("is_error", boolean, default=False)
    body.neutral("toolset_name")
    found = body.take("content", lambda item, name: _content(item, name, defaults, _RESULT), ())
    parts = _parts(found)
    told = (TextPart(_ERROR), *parts) if is_error else parts
    return Turn("tool", told, tool_call_id=call_id)


def _parts(blocks: Iterable[Block]) -> tuple[ContentPart, ...]:
    return tuple(block for block in blocks if not isinstance(block, ToolCall | Turn))


def _turns(role: str, blocks: tuple[Block, ...]) -> tuple[Turn, ...]:
    """One message's turns: results of tools stand alone, the rest around them."""
    calls = tuple(block for block in blocks if isinstance(block, ToolCall))
    turns: list[Turn] = []
    parts: list[ContentPart] = []
    for block in blocks:
        if isinstance(block, Turn):
            turns += [Turn(role, tuple(parts))] if parts else []
            turns.append(block)
            parts = []
        elif not isinstance(block, ToolCall):
            parts.append(block)
    if parts or calls or not turns:
        turns.append(Turn(role, tuple(parts), tool_calls=calls))
    return tuple(turns)


def _check_results(messages: Iterable[tuple[Turn, ...]], name: str) -> None:
    """Every result answers a call of an earlier message."""
    known: set[str] = set()
    for number, turns in enumerate(messages):
        for turn in turns:
            if turn.tool_call_id and turn.tool_call_id not in known:
                field = f"{name}[{number}].content"
                message = f"{field} has a tool_use_id that is no tool_use of an earlier message"
                raise BadRequest(message, field=field, reason="unknown")
        known.update(call.call_id for turn in turns for call in turn.tool_calls)


def _joined(turns: Iterable[Turn]) -> list[Turn]:
    """Turns of one role in a row as one, a line apart."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        if last is None or last.role != turn.role or turn.role == "tool":
            joined.append(turn)
            continue
        between = (TextPart("\n"),) if last.parts and turn.parts else ()
        joined[-1] = Turn(
            turn.role,
            (*last.parts, *between, *turn.parts),
            tool_calls=(*last.tool_calls, *turn.tool_calls),
        )
    return joined


def _continued(turn: Turn, name: str) -> Turn:
    if turn.tool_calls:
        message = f"{name} ends the conversation with a tool_use"
        hint = "send its tool_result, or leave it out"
        raise BadRequest(message, field=f"{name}.content", reason="conflict", hint=hint)
    return replace(turn, is_open=True)


_MEDIA: dict[str, _Reader] = {
    kind: READERS[kind] for kind in ("image", "image_url", "video_url")
}
_SYSTEM: dict[str, _Reader] = {"text": _text}
_RESULT: dict[str, _Reader] = {"text": _text, **_MEDIA}
_BY_ROLE: dict[str, dict[str, _Reader]] = {
    "user": {"text": _text, **_MEDIA, "tool_result": _tool_result},
    "assistant": {"text": _text, "tool_use": _tool_use},
    "system": _SYSTEM,
}
