"""The tools of a chat request: which may be called, and what that asks of the answer.

tool_choice    the answer is                          and is told as
none           free; the model is not shown any tool  text
auto           free                                   calls, if the whole of it is calls
required       {"name": ..., "arguments": {...}}      a call
a function     its arguments                          a call
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from mmserve.core import BadRequest, Constraint, ConstraintRefused
from mmserve.server.chat.tools_auto import FreeReader
from mmserve.server.chat.tools_calls import (
    AnswerReader,
    CallReader,
    NamedReader,
    TextReader,
)
from mmserve.server.chat.tools_schema import call_schema, rooted
from mmserve.server.fields import Body, Check, anything, boolean, list_of, text, word, wrong
from mmserve.server.sampling import AskedForm

__all__ = [
    "NO_TOOLS",
    "Choice",
    "Spelling",
    "Tool",
    "Tools",
    "check_depth",
    "choice_word",
    "function_tool",
    "take_tools",
    "tool_name",
]

Mode = Literal["none", "auto", "required", "named"]

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_TOOLS = 128
_MAX_DEPTH = 100
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}
_WORDS = ("none", "auto", "required")
_OLDER: dict[str, tuple[str, tuple[object, ...]]] = {
    "functions": ("tools", ([],)),
    "function_call": ("tool_choice", ("none", "auto")),
}


@dataclass(frozen=True, slots=True)
class Tool:
    """One function that may be called; `parameters` is the schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    field: str

    def definition(self) -> str:
        """As `Request.tools` has it. Pure."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a request says of tools.

    Args:
        tools: those that may be called now; for a named function only that one.
        choice: who decides about calls.
        definitions: of all tools, for the model to see.
        is_parallel: whether one answer may make several calls.
    """

    tools: tuple[Tool, ...] = ()
    choice: Mode = "none"
    definitions: tuple[str, ...] = ()
    is_parallel: bool = True

    def form(self, asked: AskedForm | None) -> AskedForm | None:
        """The form of the answer, from what calls need and what the client asks beside them.

        An answer that may be a call or text of a JSON form is constrained to either.

        Raises BadRequest for two forms at once. Pure.
        """
        if self.choice == "none" or (self.choice == "auto" and asked is None):
            return asked
        if asked is None:
            return AskedForm("tool_choice", self._forced())
        if self.choice == "auto" and asked.constraint.kind in ("json_schema", "json_object"):
            return self._either(asked)
        field = "tools" if self.choice == "auto" else "tool_choice"
        message = f"{field} and {asked.field} are given, one answer takes one constraint"
        hint = 'with tool_choice "none" it has the form alone'
        raise BadRequest(message, field=asked.field, reason="conflict", hint=hint)

    def _forced(self) -> Constraint:
        if self.choice == "named":
            return _constraint(rooted(self.tools[0].parameters))
        return _constraint(call_schema(self._named_schemas()))

    def _either(self, asked: AskedForm) -> AskedForm:
        sent = asked.constraint.value
        if asked.constraint.kind == "json_object":
            return asked  # calls are objects
        try:
            schema = json.loads(sent)
        except (ValueError, RecursionError):
            return asked  # the engine says what is wrong with it
        merged = _constraint(call_schema(self._named_schemas(), schema))
        return AskedForm(asked.field, merged, sent)

    def _named_schemas(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(tool.name, tool.parameters) for tool in self.tools]

    def reader(self) -> AnswerReader:
        """Reads one answer. Pure."""
        names = [tool.name for tool in self.tools]
        if self.choice == "named":
            return NamedReader(names[0])
        if self.choice == "required":
            return CallReader()
        if self.choice == "auto":
            return FreeReader(names, is_parallel=self.is_parallel)
        return TextReader()

    def refusal(self, error: ConstraintRefused, form: AskedForm) -> ConstraintRefused:
        """The engine's refusal of `form` by the name of what is at fault.

        Pure. Cost: milliseconds, the schemas are read once more.
        """
        for tool in self.tools:
            found = _fault_of(json.dumps(tool.parameters))
            if found is not None:
                return _of_tool(tool, found)
        if form.field != "tool_choice":
            return form.refusal((form.sent and _fault_of(form.sent)) or error)
        if len(self.tools) == 1:
            return _of_tool(self.tools[0], error)
        message = f"the parameters of the tools: {error.message}"
        return ConstraintRefused(message, hint=error.hint, **{**error.fields, "field": "tools"})


NO_TOOLS = Tools()


def _constraint(schema: object) -> Constraint:
    return Constraint("json_schema", json.dumps(schema, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Choice:
    """Who decides about calls, and the names of the tools that it is about: all, if none."""

    mode: Mode
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a surface writes a tool and a choice, and in which field a choice has its name."""

    tool: Check[Tool]
    choice: Check[Choice]
    named: str


def take_tools(body: Body, spelling: Spelling | None = None) -> Tools:
    """What the body says of tools, spelled as in chat if not otherwise; raises BadRequest.

    Changes: the fields count as known.
    """
    for field, (newer, allowed) in _OLDER.items():
        body.take(field, _older(newer, allowed), None)
    spelling = spelling or _CHAT
    tools = body.take("tools", list_of(spelling.tool, most=_MAX_TOOLS), ())
    choice = body.take("tool_choice", spelling.choice, Choice("auto" if tools else "none"))
    is_parallel = body.take("parallel_tool_calls", boolean, default=True)
    _check_names(tools)
    if not tools and choice.mode in ("required", "named"):
        name = body.name("tool_choice")
        message = f"{name} asks for a call, and there are no tools"
        raise BadRequest(message, field=name, reason="conflict", hint="send tools, too")
    known = {tool.name for tool in tools}
    for called in choice.names:
        if called not in known:
            name = body.name(spelling.named)
            message = f"{name} is {called}, which is none of the tools"
            raise BadRequest(message, field=name, reason="unknown")
    if not tools or choice.mode == "none":
        return NO_TOOLS
    definitions = tuple(tool.definition() for tool in tools)
    chosen = tuple(tool for tool in tools if tool.name in (choice.names or known))
    return Tools(chosen, choice.mode, definitions, is_parallel)


def tool_name(value: object, name: str) -> str:
    """A function's name by OpenAI's rule: 1 to 64 of letters, digits, `_` and `-`. Pure."""
    words = text(value, name)
    if not _NAME.fullmatch(words):
        raise wrong(name, value, "1 to 64 of a-z, A-Z, 0-9, _ and -")
    return words


def check_depth(value: object, name: str) -> None:
    """Raise BadRequest if a JSON value is nested deeper than templates can write. Pure."""
    if _is_deeper(value, _MAX_DEPTH):
        message = f"{name} is nested deeper than {_MAX_DEPTH}"
        raise BadRequest(message, field=name, reason="too_deep")


def _is_deeper(value: object, most: int) -> bool:
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return most == 0 or any(_is_deeper(one, most - 1) for one in inner)
    return False


def _older(newer: str, allowed: tuple[object, ...]) -> Any:  # noqa: ANN401 - a Check
    def check(value: object, name: str) -> None:
        if value not in allowed:
            message = f"{name} is the older form of {newer}, and is not served"
            raise BadRequest(message, field=name, reason="unsupported", hint=f"send {newer}")

    return check


def _tool(value: object, name: str) -> Tool:
    body = Body(value, name)
    body.need("type", word("function"))
    function = Body(body.need("function", anything), body.name("function"))
    tool = function_tool(function, body.name("function"))
    function.finish()
    body.finish()
    return tool


def function_tool(function: Body, field: str) -> Tool:
    """The tool that an object called `field` describes. Changes: its fields count as known."""
    function.take("strict", boolean, None)
    return Tool(
        name=function.need("name", tool_name),
        description=function.take("description", text, ""),
        parameters=function.take("parameters", _parameters, _NO_PARAMETERS),
        field=field,
    )


def _parameters(value: object, name: str) -> Mapping[str, Any]:
    """A schema of JSON objects, which arguments always are."""
    if not isinstance(value, dict):
        raise wrong(name, value, "a JSON schema object")
    kind = value.get("type", "object")
    if kind != "object":
        raise wrong(f"{name}.type", kind, '"object", as arguments are an object')
    check_depth(value, name)
    return {"type": "object", **value}


def choice_word(value: object, name: str) -> Choice | None:
    """The choice that is one word; none, if it is an object. Pure."""
    if isinstance(value, str):
        return Choice(word(*_WORDS)(value, name))  # type: ignore[arg-type]  # one of the words
    if not isinstance(value, dict):
        raise wrong(name, value, f"{', '.join(_WORDS)} or an object that names a function")
    return None


def _choice(value: object, name: str) -> Choice:
    chosen = choice_word(value, name)
    if chosen is not None:
        return chosen
    body = Body(value, name)
    body.need("type", word("function"))
    function = Body(body.need("function", anything), body.name("function"))
    found = function.need("name", tool_name)
    function.finish()
    body.finish()
    return Choice("named", (found,))


_CHAT = Spelling(_tool, _choice, "tool_choice.function.name")


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen:
            field = f"{tool.field}.name"
            message = f"{field} is {tool.name}, the name of an earlier tool"
            raise BadRequest(message, field=field, reason="twice")
        seen.add(tool.name)


def _of_tool(tool: Tool, error: ConstraintRefused) -> ConstraintRefused:
    fields = {**error.fields, "field": f"{tool.field}.parameters"}
    return ConstraintRefused(f"tool {tool.name}: {error.message}", hint=error.hint, **fields)


def _fault_of(schema: str) -> ConstraintRefused | None:
    """What is wrong with a schema on its own, if anything is."""
    from mmserve.constrained.schemas import read_schema  # noqa: PLC0415  for a refusal only

    try:
        read_schema(schema)
    except ConstraintRefused as error:
        return error
    return None
