"""Anthropic's `tools` and `tool_choice`, as the tools of a chat request.

none     the model is not shown any tool
auto     text, or calls
any      a call of one of them        valid against its schema
tool     a call of the named one      valid against its schema
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mmserve.core import BadRequest
from mmserve.server.anthropic.blocks import take_cache_mark
from mmserve.server.chat.tools import NO_TOOLS, Tool, Tools, check_depth
from mmserve.server.fields import Body, boolean, list_of, text, word, wrong

__all__ = ["take_tools"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class _Choice:
    kind: str
    name: str = ""
    is_parallel: bool = True


def take_tools(body: Body) -> Tools:
    """What the body says of tools; raises BadRequest. Changes: the fields count as known."""
    tools = body.take("tools", list_of(_tool, most=_MAX_TOOLS), ())
    choice = body.take("tool_choice", _choice, _Choice("auto" if tools else "none"))
    _check_names(tools)
    if choice.kind == "none" or (choice.kind == "auto" and not tools):
        return NO_TOOLS
    name = body.name("tool_choice")
    if not tools:
        message = f"{name} asks for a call, and there are no tools"
        raise BadRequest(message, field=name, reason="conflict", hint="send tools, too")
    definitions = tuple(tool.definition() for tool in tools)
    if choice.kind == "auto":
        return Tools(tools, "auto", definitions, choice.is_parallel)
    if choice.kind == "any":
        return Tools(tools, "required", definitions, choice.is_parallel)
    named = tuple(tool for tool in tools if tool.name == choice.name)
    if not named:
        message = f"{name}.name is {choice.name}, which is none of the tools"
        raise BadRequest(message, field=f"{name}.name", reason="unknown")
    return Tools(named, "named", definitions, choice.is_parallel)


def _tool(value: object, name: str) -> Tool:
    body = Body(value, name)
    body.take("type", _type, None)
    tool = Tool(
        name=body.need("name", _tool_name),
        description=body.take("description", text, ""),
        parameters=body.need("input_schema", _schema),
        field=name,
    )
    body.take("strict", boolean, None)
    body.take("eager_input_streaming", boolean, None)  # arguments always come piece by piece
    body.neutral("defer_loading", allowed=(False,))
    body.neutral("input_examples", allowed=([],))
    body.neutral("allowed_callers", allowed=(["direct"],))
    take_cache_mark(body)
    body.finish()
    return tool


def _type(value: object, name: str) -> None:
    if text(value, name) != "custom":
        message = f"{name} names a tool that runs at Anthropic, which this server does not have"
        hint = "give a tool of your own, with name and input_schema"
        raise BadRequest(message, field=name, reason="unsupported", hint=hint)


def _tool_name(value: object, name: str) -> str:
    words = text(value, name)
    if not _NAME.fullmatch(words):
        raise wrong(name, value, "1 to 128 of a-z, A-Z, 0-9, _ and -")
    return words


def _schema(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, value, "a JSON schema object")
    kind = value.get("type", "object")
    if kind != "object":
        raise wrong(f"{name}.type", kind, json.dumps("object"))
    check_depth(value, name)
    return {"type": "object", **value}


def _choice(value: object, name: str) -> _Choice:
    body = Body(value, name)
    kind = body.need("type", word("auto", "any", "tool", "none"))
    called = body.need("name", _tool_name) if kind == "tool" else ""
    is_single = False
    if kind != "none":
        is_single = body.take("disable_parallel_tool_use", boolean, default=False)
    body.finish()
    return _Choice(kind, called, not is_single)


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            field = f"{tool.field}.name"
            message = f"{field} is {tool.name}, the name of an earlier tool"
            raise BadRequest(message, field=field, reason="twice")
        seen.add(tool.name)
