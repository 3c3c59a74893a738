"""Finds out in which form a chat template takes a message's content, and if it knows tools."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmserve.core import BadRequest
from mmserve.prompt.styles import PictureStyle
from mmserve.prompt.template import ChatTemplate

__all__ = ["Form", "Forms", "Shape"]

Form = Literal["string", "joined", "parts"]
Tools = Sequence[Mapping[str, Any]]
"""Definitions as a template takes them."""
_PROBE = re.compile("zq_([0-9]+)_qz")
_QUOTED = re.compile(r"""['"]text['"]:\s*['"]\Z""")


@dataclass(frozen=True, slots=True)
class Shape:
    """A message without its words.

    Args:
        role: who speaks.
        kinds: kinds of its parts, neighbouring texts joined.
        call_ids: ids of the tools' calls that it makes.
        result_of: id of the call that it answers.
        is_null: whether its content is null where it has calls and no parts; else it is "".
    """

    role: str
    kinds: tuple[str, ...]
    call_ids: tuple[str, ...] = ()
    result_of: str = ""
    is_null: bool = False

    @property
    def is_mute(self) -> bool:
        """Whether there is nothing but calls. Pure."""
        return bool(self.call_ids) and not self.kinds


def _probe(number: int) -> str:
    return f"zq_{number}_qz"


def _tool_probe(word: str) -> str:
    return f"zq_tool_{word}_qz"


_TOOL_PROBES = (_tool_probe("name"), _tool_probe("field"))
_PROBE_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _TOOL_PROBES[0],
        "description": "d",
        "parameters": {
            "type": "object",
            "properties": {_TOOL_PROBES[1]: {"type": "string", "description": "d"}},
            "required": [],
        },
    },
}


class Forms:
    """What one template does with strings, lists and media parts; learned as shapes come.

    Args:
        template: the template to ask.
        placeholders: kind of media by the placeholder that the template writes for it.

    Changes: its memory of answers. Safe to use from any thread (answers never change).
    """

    def __init__(self, template: ChatTemplate, placeholders: Mapping[str, str]) -> None:
        self._template = template
        self._placeholders = placeholders
        spelled = sorted(placeholders, key=len, reverse=True)
        self._slots = re.compile(f"({'|'.join(map(re.escape, spelled))})") if spelled else None
        self._of_role: dict[str, Form] = {}
        self._keeps_order: dict[tuple[str, tuple[str, ...]], bool] = {}

    def split_placeholders(self, text: str) -> list[str]:
        """Text and placeholders in order; placeholders are whole elements. Pure."""
        return self._slots.split(text) if self._slots else [text]

    def picture_style(self) -> PictureStyle:
        """What the template writes right around a picture that stands in a text. Pure."""
        content = [_text(_probe(0)), {"type": "image"}, _text(_probe(1))]
        try:
            rendered = self._template.render([{"role": "user", "content": content}])
        except BadRequest:
            return PictureStyle()
        _, _, between = rendered.partition(_probe(0))
        between, is_last, _ = between.partition(_probe(1))
        pieces = self.split_placeholders(between)
        if not is_last or len(pieces) != 3 or self._placeholders.get(pieces[1]) != "image":
            return PictureStyle()
        return PictureStyle(pieces[0], pieces[2])

    def choose(self, shapes: Sequence[Shape], *, tools: Tools = ()) -> list[Form]:
        """A form for each message under which the template writes all of it, in its order.

        Raises:
            BadRequest: the template refuses the conversation, or leaves a message out.

        Cost: nothing for shapes seen before; else a few renderings of the conversation.
        """
        self._learn_roles(shapes, tools=tools)
        return [self._form(number, shapes, tools=tools) for number in range(len(shapes))]

    def writes_tools(self, shapes: Sequence[Shape], tools: Tools) -> bool:
        """Whether the template writes all of a conversation, tools, calls and results too.

        Cost: a rendering of the conversation, and what `choose` costs.
        """
        try:
            self.choose(shapes, tools=tools)
            messages = self._messages(shapes, self._of_role)
            rendered = self._rendered(messages, tools=tools)
        except BadRequest:
            return False
        expected = list(_TOOL_PROBES if tools else ())
        for number, shape in enumerate(shapes):
            if not shape.is_mute:
                expected.append(_probe(number))
            for order in range(len(shape.call_ids)):
                expected += _call_probes(number, order)
        return all(probe in rendered for probe in expected)

    def _form(self, number: int, shapes: Sequence[Shape], *, tools: Tools) -> Form:
        shape = shapes[number]
        base = self._of_role.get(shape.role, "string")
        if set(shape.kinds) <= {"text"}:
            return base
        key = (shape.role, shape.kinds)
        if key not in self._keeps_order:
            self._keeps_order[key] = self._try_parts(number, shapes, tools=tools)
        return "parts" if self._keeps_order[key] else base

    def _learn_roles(self, shapes: Sequence[Shape], *, tools: Tools) -> None:
        """Strings where the template writes them out; else lists."""
        unknown = {shape.role for shape in shapes if not shape.is_mute} - set(self._of_role)
        if not unknown:
            return
        found: dict[str, Form] = dict.fromkeys(unknown, "string")
        refusal: BadRequest | None = None
        try:
            lost = self._lost(shapes, found, tools=tools)
        except BadRequest as error:
            lost, refusal = unknown, error
        if lost:
            found.update(dict.fromkeys(unknown & lost, "joined"))
            try:
                lost = self._lost(shapes, found, tools=tools)
            except BadRequest as error:
                raise refusal or error from None
        if lost:
            role = min(lost)
            message = f"the model's chat template does not write out messages of role {role!r}"
            raise refusal or BadRequest(message, field="messages", reason="template")
        self._of_role.update(found)

    def _lost(
        self, shapes: Sequence[Shape], found: Mapping[str, Form], *, tools: Tools
    ) -> set[str]:
        """Roles whose probe is not written as plain text. Raises BadRequest if refused."""
        messages = self._messages(shapes, {**self._of_role, **found})
        rendered = self._rendered(messages, tools=tools)
        seen = {
            int(match[1])
            for match in _PROBE.finditer(rendered)
            if not _QUOTED.search(rendered, max(match.start() - 12, 0), match.start())
        }
        return {
            shape.role
            for number, shape in enumerate(shapes)
            if number not in seen and not shape.is_mute
        }

    def _messages(
        self, shapes: Sequence[Shape], forms: Mapping[str, Form]
    ) -> list[dict[str, Any]]:
        return [
            _message(shape, forms.get(shape.role, "string"), number)
            for number, shape in enumerate(shapes)
        ]

    def _rendered(self, messages: Sequence[Mapping[str, Any]], *, tools: Tools) -> str:
        return self._template.render(messages, tools=[_PROBE_TOOL, *tools] if tools else None)

    def _try_parts(self, number: int, shapes: Sequence[Shape], *, tools: Tools) -> bool:
        """Whether the template writes all parts of this message in order if given a list."""
        messages = self._messages(shapes, self._of_role)
        content: list[dict[str, Any]] = []
        expected: list[str] = []
        for order, kind in enumerate(shapes[number].kinds, start=len(shapes)):
            if kind == "text":
                content.append(_text(_probe(order)))
                expected.append(str(order))
            else:
                content.append({"type": kind})
                expected.append(kind)
        messages[number]["content"] = content
        try:
            rendered = self._rendered(messages, tools=tools)
        except BadRequest:
            return False
        return self._observed(rendered, first=len(shapes)) == expected

    def _observed(self, rendered: str, first: int) -> list[str]:
        """Placeholders' kinds and numbers of probes from `first` on, in the order written."""
        observed = []
        for part in self.split_placeholders(rendered):
            if part in self._placeholders:
                observed.append(self._placeholders[part])
            else:
                observed += [one for one in _PROBE.findall(part) if int(one) >= first]
        return observed


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _message(shape: Shape, form: Form, number: int) -> dict[str, Any]:
    text = _probe(number)
    message: dict[str, Any] = {"role": shape.role}
    if shape.is_mute:
        message["content"] = None if shape.is_null else ""
    else:
        message["content"] = text if form == "string" else [_text(text)]
    if shape.call_ids:
        message["tool_calls"] = [
            _call(call_id, *_call_probes(number, order))
            for order, call_id in enumerate(shape.call_ids)
        ]
    if shape.result_of:
        message |= {"tool_call_id": shape.result_of, "name": "n"}
    return message


def _call_probes(number: int, order: int) -> tuple[str, str, str]:
    """Name of a called tool, name of an argument, and the argument."""
    first, second, third = (_tool_probe(f"{number}.{order}{letter}") for letter in "abc")
    return first, second, third


def _call(call_id: str, name: str, key: str, value: str) -> dict[str, Any]:
    function = {"name": name, "arguments": {key: value}}
    return {"id": call_id, "type": "function", "function": function}
