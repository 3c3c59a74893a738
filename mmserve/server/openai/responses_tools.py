"""Tools as the Responses API writes them: name and parameters stand beside the type."""

from __future__ import annotations

from typing import Any

from mmserve.core import BadRequest
from mmserve.server.chat.tools import Choice, Spelling, Tool, choice_word, function_tool
from mmserve.server.chat.tools import tool_name as check_name
from mmserve.server.fields import Body, list_of, shown, text, word

__all__ = ["FLAT", "listed_tools"]


def listed_tools(tools: object) -> list[dict[str, Any]]:
    """Tools that were read, as a response repeats them. Pure."""
    if not isinstance(tools, list):
        return []
    names = ("name", "description", "parameters", "strict")
    return [{"type": "function", **{name: tool.get(name) for name in names}} for tool in tools]


def _tool(value: object, name: str) -> Tool:
    body = Body(value, name)
    _check_kind(body, "tools of this kind are not run here")
    body.take("function", _nested, None)
    for field in ("allowed_callers", "output_schema"):
        body.neutral(field)
    for field in ("async", "defer_loading"):
        body.neutral(field, allowed=(False,))
    tool = function_tool(body, name)
    body.finish()
    return tool


def _check_kind(body: Body, reason: str) -> None:
    kind = body.need("type", text)
    if kind != "function":
        field = body.name("type")
        message = f"{field} is {shown(kind)}, {reason}"
        hint = 'offer it with type "function", and run its calls yourself'
        raise BadRequest(message, field=field, reason="unsupported", hint=hint)


def _nested(_value: object, name: str) -> None:
    message = f"{name} is how the chat API writes a tool"
    hint = "put name, description and parameters beside type"
    raise BadRequest(message, field=name, reason="unsupported", hint=hint)


def _choice(value: object, name: str) -> Choice:
    chosen = choice_word(value, name)
    if chosen is not None:
        return chosen
    body = Body(value, name)
    if body.need("type", text) == "allowed_tools":
        mode = body.need("mode", word("auto", "required"))
        names = body.need("tools", list_of(_named))
        body.finish()
        if not names:
            message = f"{body.name('tools')} is empty"
            hint = 'tool_choice "none" allows no call'
            raise BadRequest(message, field=body.name("tools"), reason="empty", hint=hint)
        return Choice("auto" if mode == "auto" else "required", names)
    return Choice("named", (_named(value, name),))


def _named(value: object, name: str) -> str:
    body = Body(value, name)
    _check_kind(body, "only functions can be chosen")
    body.take("function", _nested, None)
    found = body.need("name", check_name)
    body.finish()
    return found


FLAT = Spelling(_tool, _choice, "tool_choice.name")
"""For `take_tools`."""
