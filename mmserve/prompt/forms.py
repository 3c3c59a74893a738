"""Finds out in which form a chat template takes a message's content."""

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
_PROBE = re.compile(r"\ue000probe([0-9]+)\ue001")
_QUOTED = re.compile(r"""['"]text['"]:\s*['"]\Z""")


@dataclass(frozen=True, slots=True)
class Shape:
    """A message without its words: role, and kinds of its parts, neighbouring texts joined."""

    role: str
    kinds: tuple[str, ...]


def _probe(number: int) -> str:
    return f"\ue000probe{number}\ue001"


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
        self._keeps_order: dict[Shape, bool] = {}

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

    def choose(self, shapes: Sequence[Shape]) -> list[Form]:
        """A form for each message under which the template writes all of it, in its order.

        Raises:
            BadRequest: the template refuses the conversation, or leaves a message out.

        Cost: nothing for shapes seen before; else a few renderings of the conversation.
        """
        self._learn_roles(shapes)
        return [self._form(number, shapes) for number in range(len(shapes))]

    def _form(self, number: int, shapes: Sequence[Shape]) -> Form:
        shape = shapes[number]
        base = self._of_role[shape.role]
        if set(shape.kinds) <= {"text"}:
            return base
        if shape not in self._keeps_order:
            self._keeps_order[shape] = self._try_parts(number, shapes)
        return "parts" if self._keeps_order[shape] else base

    def _learn_roles(self, shapes: Sequence[Shape]) -> None:
        """Strings where the template writes them out; else lists."""
        unknown = {shape.role for shape in shapes} - set(self._of_role)
        if not unknown:
            return
        found: dict[str, Form] = dict.fromkeys(unknown, "string")
        refusal: BadRequest | None = None
        try:
            lost = self._lost(shapes, found)
        except BadRequest as error:
            lost, refusal = unknown, error
        if lost:
            found.update(dict.fromkeys(unknown & lost, "joined"))
            try:
                lost = self._lost(shapes, found)
            except BadRequest as error:
                raise refusal or error from None
        if lost:
            role = min(lost)
            message = f"the model's chat template does not write out messages of role {role!r}"
            raise refusal or BadRequest(message, field="messages", reason="template")
        self._of_role.update(found)

    def _lost(self, shapes: Sequence[Shape], found: Mapping[str, Form]) -> set[str]:
        """Roles whose probe is not written as plain text. Raises BadRequest if refused."""
        forms = {**self._of_role, **found}
        messages = [
            _message(shape.role, forms[shape.role], number)
            for number, shape in enumerate(shapes)
        ]
        rendered = self._template.render(messages)
        seen = {
            int(match[1])
            for match in _PROBE.finditer(rendered)
            if not _QUOTED.search(rendered, max(match.start() - 12, 0), match.start())
        }
        return {shape.role for number, shape in enumerate(shapes) if number not in seen}

    def _try_parts(self, number: int, shapes: Sequence[Shape]) -> bool:
        """Whether the template writes all parts of this message in order if given a list."""
        messages = [
            _message(shape.role, self._of_role[shape.role], order)
            for order, shape in enumerate(shapes)
        ]
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
            rendered = self._template.render(messages)
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


def _message(role: str, form: Form, number: int) -> dict[str, Any]:
    text = _probe(number)
    content = text if form == "string" else [_text(text)]
    return {"role": role, "content": content}
