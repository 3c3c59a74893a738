"""Tools in a conversation: as fields for templates that know them, as plain text for others.

What a template does is seen by trying it (`Forms.writes_tools`). One that knows tools gets
definitions, calls and results as fields. For any other, turns are written anew:

    system     ...  You can call these tools ... {"name": ...}
    assistant  ...  <tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>
    tool            <tool_response name="weather">4 degrees</tool_response>
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mmserve.core import TextPart, ToolCall, Turn

__all__ = [
    "call_names",
    "guarded",
    "mentions_tools",
    "plain_ways",
    "tool_fields",
    "with_short_ids",
]

_ID_CHARACTERS = 9
_COMMON_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)


def mentions_tools(turns: Sequence[Turn], tools: Sequence[str]) -> bool:
    """Whether there are tools, calls or results of calls. Pure."""
    return bool(tools) or any(turn.tool_calls or turn.tool_call_id for turn in turns)


# --- templates that know tools ---------------------------------------------------------------


def guarded(value: Any, guard: Callable[[str], str]) -> Any:  # noqa: ANN401 - parsed JSON
    """A JSON value with every text in it guarded, names too. Pure."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, list):
        return [guarded(item, guard) for item in value]
    if isinstance(value, dict):
        return {guard(name): guarded(item, guard) for name, item in value.items()}
    return value


def tool_fields(
    turn: Turn, names: Mapping[str, str], guard: Callable[[str], str]
) -> dict[str, Any]:
    """What a message has beside role and content.

    Args:
        turn: the turn that becomes the message.
        names: the called tool's name by the id of its call.
        guard: defuses what users wrote.

    Pure.
    """
    fields: dict[str, Any] = {}
    if turn.tool_calls:
        fields["tool_calls"] = [
            {
                "id": guard(call.call_id),
                "type": "function",
                "function": {
                    "name": guard(call.name),
                    "arguments": guarded(json.loads(call.arguments or "{}"), guard),
                },
            }
            for call in turn.tool_calls
        ]
    if turn.tool_call_id:
        fields["tool_call_id"] = guard(turn.tool_call_id)
        if turn.tool_call_id in names:
            fields["name"] = guard(names[turn.tool_call_id])
    return fields


def with_short_ids(turns: Sequence[Turn], *, only_odd: bool = False) -> tuple[Turn, ...]:
    """The same with ids of nine letters and digits, which some templates insist on.

    With `only_odd` that is done to ids of uncommon characters only. Pure.
    """

    def short(call_id: str) -> str:
        if not call_id or (only_odd and _COMMON_ID.fullmatch(call_id)):
            return call_id
        digest = hashlib.sha256(call_id.encode("utf-8", "surrogatepass"))
        return digest.hexdigest()[:_ID_CHARACTERS]

    return tuple(
        replace(
            turn,
            tool_calls=tuple(
                replace(call, call_id=short(call.call_id)) for call in turn.tool_calls
            ),
            tool_call_id=short(turn.tool_call_id),
        )
        for turn in turns
    )


# --- templates that do not -------------------------------------------------------------------


def plain_ways(turns: Sequence[Turn], tools: Sequence[str]) -> list[tuple[Turn, ...]]:
    """The conversation with tools as text, by roles that a template may lack, the best first.

    Results stand in turns of role `tool`, else of the user; the list of tools stands in the
    system's turn, else before the first text of all. Pure.
    """
    names = call_names(turns)
    ways = []
    for has_system in (True, False):
        for result_role in ("tool", "user"):
            said = [_plain_turn(turn, names, result_role) for turn in turns]
            said = said if result_role == "tool" else _joined(said)
            if tools:
                said = _introduced(said, tools, has_system=has_system)
            ways.append(tuple(replace(turn, tool_call_id="") for turn in said))
    return list(dict.fromkeys(ways))


def call_names(turns: Sequence[Turn]) -> dict[str, str]:
    """The called tool's name by the id of its call. Pure."""
    return {call.call_id: call.name for turn in turns for call in turn.tool_calls}


def _plain_turn(turn: Turn, names: Mapping[str, str], result_role: str) -> Turn:
    if turn.tool_calls:
        calls = "\n".join(map(_written, turn.tool_calls))
        lead = "\n" if turn.parts else ""
        return replace(turn, parts=(*turn.parts, TextPart(lead + calls)), tool_calls=())
    if turn.tool_call_id:
        name = names.get(turn.tool_call_id)
        begin = f'<tool_response name="{name}">' if name else "<tool_response>"
        parts = (TextPart(begin), *turn.parts, TextPart("</tool_response>"))
        return replace(turn, role=result_role, parts=parts)
    return turn


def _written(call: ToolCall) -> str:
    arguments = json.loads(call.arguments or "{}")
    words = json.dumps({"name": call.name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>{words}</tool_call>"


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """Results, and what a user says beside them, as one turn: roles may have to alternate."""
    joined: list[Turn] = []
    for turn in turns:
        last = joined[-1] if joined else None
        is_near = last is not None and last.role == turn.role == "user"
        if last is not None and is_near and (last.tool_call_id or turn.tool_call_id):
            parts = (*last.parts, TextPart("\n"), *turn.parts)
            joined[-1] = replace(turn, parts=parts)
        else:
            joined.append(turn)
    return joined


def _introduced(turns: Sequence[Turn], tools: Sequence[str], *, has_system: bool) -> list[Turn]:
    text = _introduction(tools)
    first = turns[0]
    if first.role == "system":
        last = TextPart(f"\n\n{text}" if first.parts else text)
        return [replace(first, parts=(*first.parts, last)), *turns[1:]]
    if has_system:
        return [Turn("system", (TextPart(text),)), *turns]
    return [replace(first, parts=(TextPart(f"{text}\n\n"), *first.parts)), *turns[1:]]


def _introduction(tools: Sequence[str]) -> str:
    listed = [
        json.dumps(json.loads(tool).get("function"), ensure_ascii=False) for tool in tools
    ]
    call = '<tool_call>{"name": NAME, "arguments": {...}}</tool_call>'
    return "\n".join(
        [
            "You can call these tools, each with arguments that match its parameters:",
            *listed,
            f"To call one, answer {call} and nothing else.",
            "Its result comes back as <tool_response>.",
        ]
    )
