"""Turns through a chat template to stretches of text and slots for media.

Users' texts pass through the template with marks (see `marks`), so the template's own trims
and tests act on them. How a message's content is handed over is found out once per role and
shape, by rendering the same conversation with probes in place of texts:

    string   text in one string; media as marks in it
    joined   the same string as the only text part of a list, for templates that take only lists
    parts    text and media parts in a list, if the template then keeps their order

Tools, calls and results are fields for a template that writes them, else text (see `tools`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from mmserve.core import BadRequest, ImagePart, RawPart, TextPart, Turn, VideoPart
from mmserve.prompt.forms import Form, Forms, Shape
from mmserve.prompt.marks import Mark, Marks, Spellings
from mmserve.prompt.styles import PictureStyle, Slot
from mmserve.prompt.template import ChatTemplate
from mmserve.prompt.tokenizer import Stretch, Tokenizer, check_text
from mmserve.prompt.tools import (
    call_names,
    guarded,
    mentions_tools,
    plain_ways,
    tool_fields,
    with_short_ids,
)

__all__ = ["Conversations"]

ROLES = frozenset(
    {"system", "developer", "user", "assistant", "tool", "function", "ipython", "context"}
)

Piece = Stretch | Slot


@dataclass(frozen=True, slots=True)
class _Item:
    """A run of text parts, or a media part with its index in the prompt."""

    kind: Literal["text", "image", "video"]
    text: str = ""
    index: int = 0
    verbatim: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class _Scene:
    """What one rendering has beside turns and their contents.

    Args:
        marks: its marks.
        tools: definitions for a template that knows tools, guarded.
        names: the called tool's name by the id of its call.
        is_null: whether an assistant's content is null where it only calls.
    """

    marks: Marks
    tools: tuple[dict[str, Any], ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    is_null: bool = False

    def shape(self, turn: Turn, items: Sequence[_Item]) -> Shape:
        """The turn without its words. Pure."""
        return Shape(
            turn.role,
            tuple(item.kind for item in items),
            tuple(call.call_id for call in turn.tool_calls),
            turn.tool_call_id,
            self.is_null,
        )

    def message(self, turn: Turn, items: Sequence[_Item], form: Form) -> dict[str, Any]:
        """The turn as templates take it. Pure."""
        is_mute = bool(turn.tool_calls) and not items
        silence = None if self.is_null else ""
        content = silence if is_mute else _content(items, form, self.marks)
        fields = tool_fields(turn, self.names, self.marks.guard)
        return {"role": turn.role, "content": content, **fields}


class Conversations:
    """Renders turns with one chat template.

    Args:
        tokenizer: whose control tokens must not be spelled by users.
        template: the model's chat template.
        placeholders: kind of media by the placeholder that the template writes for it.
        reserved: further spellings that are never media, whoever writes them.

    Safe to use from any thread. Changes: what it knows of the template's habits.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        *,
        placeholders: Mapping[str, str],
        reserved: Iterable[str] = (),
    ) -> None:
        self._template = template
        self._placeholders = dict(placeholders)
        self._spellings = Spellings(tokenizer, [*placeholders, *reserved])
        self._forms = Forms(template, self._placeholders)

    @property
    def picture_style(self) -> PictureStyle:
        """What the template writes around a picture, for pictures outside of it. Pure."""
        return self._forms.picture_style()

    def render(
        self, turns: Sequence[Turn], first_index: int, tools: Sequence[str] = ()
    ) -> list[Piece]:
        """Stretches and slots of one conversation; its media count from `first_index`.

        Args:
            turns: at least one.
            first_index: of the conversation's first picture or clip.
            tools: definitions as JSON, see `Request.tools`.

        Raises:
            BadRequest: an unknown role, an open turn before the last, half of a surrogate pair,
                or a conversation that the template refuses or does not write out in full.
        """
        for turn in turns:
            _check_turn(turn, is_last=turn is turns[-1])
        scene = _Scene(Marks(self._spellings))
        if mentions_tools(turns, tools):
            turns, scene = self._with_tools(turns, tools, scene)
        contents = self._contents(turns, scene.marks, first_index)
        if turns[-1].is_open:
            return self._open(turns, contents, scene)
        return self._pieces(self._rendered(turns, contents, scene), contents, scene.marks)

    def goes_on_behind(self, turns: Sequence[Turn], tools: Sequence[str] = ()) -> bool:
        """Whether the open last turn continues word for word with any text put at its end.

        Else the template may write something before a text, or look at it. Raises as `render`.
        """
        scene = _Scene(Marks(self._spellings))
        if mentions_tools(turns, tools):
            turns, scene = self._with_tools(turns, tools, scene)
        contents = self._contents(turns, scene.marks, 0)
        before = self._prompted(turns, contents, scene)
        if before is None:
            return False
        end = _Item("text", scene.marks.mark("e"))
        bare = self._cut(turns, [*contents[:-1], [end]], scene)
        return bare == before or not bare.startswith(before)

    def _with_tools(
        self, turns: Sequence[Turn], tools: Sequence[str], scene: _Scene
    ) -> tuple[Sequence[Turn], _Scene]:
        """Turns and scene in the first way in which the template writes all that they hold."""
        for words in (*tools, *(call.arguments for turn in turns for call in turn.tool_calls)):
            check_text(json.dumps(json.loads(words or "{}"), ensure_ascii=False), "tools")
        known = tuple(guarded(json.loads(tool), scene.marks.guard) for tool in tools)
        turns = with_short_ids(turns, only_odd=True)
        for said in dict.fromkeys((turns, with_short_ids(turns))):
            for is_null in (False, True):
                aware = replace(scene, tools=known, names=call_names(said), is_null=is_null)
                if self._forms.writes_tools(self._shapes(said, aware), known):
                    return said, aware
        refusal: BadRequest | None = None
        for said in plain_ways(turns, tools):
            try:
                self._forms.choose(self._shapes(said, scene))
            except BadRequest as error:
                refusal = refusal or error
            else:
                return said, scene
        raise refusal or _left_out("tool")

    def _shapes(self, turns: Sequence[Turn], scene: _Scene) -> list[Shape]:
        """Shapes of all turns, without an answer that is to come."""
        has_answer = turns[-1].is_open and turns[-1].role == "assistant" and len(turns) > 1
        said = turns[:-1] if has_answer else turns
        contents = self._contents(said, scene.marks, 0)
        return [scene.shape(turn, items) for turn, items in zip(said, contents, strict=True)]

    def _contents(self, turns: Sequence[Turn], marks: Marks, index: int) -> list[list[_Item]]:
        contents: list[list[_Item]] = []
        for turn in turns:
            contents.append(self._items(turn, marks, index))
            index += sum(isinstance(part, ImagePart | VideoPart) for part in turn.parts)
        return contents

    def _items(self, turn: Turn, marks: Marks, index: int) -> list[_Item]:
        """Parts of a turn, neighbouring texts joined; media without placeholder are text."""
        items: list[_Item] = []
        for part in turn.parts:
            if isinstance(part, TextPart | RawPart):
                if part.text:
                    items = _append(items, _text_item(part, marks))
                continue
            kind: Literal["image", "video"] = (
                "image" if isinstance(part, ImagePart) else "video"
            )
            if kind in self._placeholders.values():
                items.append(_Item(kind, index=index, verbatim=(Slot(index),)))
            else:
                mark = _Item("text", marks.mark("m", index), verbatim=(Slot(index),))
                items = _append(items, mark)
            index += 1
        return items

    def _open(
        self, turns: Sequence[Turn], contents: list[list[_Item]], scene: _Scene
    ) -> list[Piece]:
        """The last turn without its end.

        An assistant's turn continues the template's generation prompt word for word, unless the
        template would put more (a blank, say) before a text that does not bring it along.
        """
        marks = scene.marks
        before = self._prompted(turns, contents, scene)
        last = contents[-1]
        if before is not None and not last:
            return self._pieces(before, contents[:-1], marks)
        end = _Item("text", marks.mark("e"))
        if before is not None:
            bare = self._cut(turns, [*contents[:-1], [end]], scene)
            lead = bare.removeprefix(before)
            if not bare.startswith(before) or _first_text(last).startswith(lead):
                return self._pieces(before, contents[:-1], marks) + _verbatim(last)
        ended = [*contents[:-1], _append(last, end)]
        return self._pieces(self._cut(turns, ended, scene), ended, marks)

    def _prompted(
        self, turns: Sequence[Turn], contents: list[list[_Item]], scene: _Scene
    ) -> str | None:
        """Everything before an open assistant turn's text, or None for other roles."""
        if turns[-1].role != "assistant" or len(turns) == 1:
            return None
        return self._rendered(turns[:-1], contents[:-1], scene, add_generation_prompt=True)

    def _cut(self, turns: Sequence[Turn], contents: list[list[_Item]], scene: _Scene) -> str:
        rendered = self._rendered(turns, contents, scene)
        before, found, _ = rendered.rpartition(scene.marks.mark("e"))
        if not found:
            raise _left_out(turns[-1].role)
        return before

    def _rendered(
        self,
        turns: Sequence[Turn],
        contents: Sequence[Sequence[_Item]],
        scene: _Scene,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        said = list(zip(turns, contents, strict=True))
        shapes = [scene.shape(turn, items) for turn, items in said]
        forms = self._forms.choose(shapes, tools=scene.tools)
        messages = [
            scene.message(turn, items, form)
            for (turn, items), form in zip(said, forms, strict=True)
        ]
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, tools=scene.tools
        )

    def _pieces(
        self, rendered: str, contents: Sequence[Sequence[_Item]], marks: Marks
    ) -> list[Piece]:
        """Rendered text cut at media: at marks, and where the template wrote placeholders."""
        indexes = [item.index for items in contents for item in items if item.kind != "text"]
        marked = {
            piece.number
            for piece in marks.split(rendered)
            if isinstance(piece, Mark) and piece.kind == "m"
        }
        placed = iter([index for index in indexes if index not in marked])
        pieces: list[Piece] = []
        for part in self._forms.split_placeholders(rendered):
            if part in self._placeholders:
                index = next(placed, None)
                if index is None:
                    raise _miscounted()
                pieces.append(Slot(index, is_wrapped=True))
            else:
                pieces += _cut_at_marks(part, marks)
        if next(placed, None) is not None:
            raise _miscounted()
        return pieces


def _cut_at_marks(text: str, marks: Marks) -> list[Piece]:
    pieces: list[Piece] = []
    run = ""
    for piece in marks.split(text):
        if isinstance(piece, str):
            run += piece
        elif piece.kind == "m":
            pieces += [*marks.stretches(run), Slot(piece.number)]
            run = ""
        else:
            run += marks.mark(piece.kind, piece.number)
    return pieces + marks.stretches(run)


def _check_turn(turn: Turn, *, is_last: bool) -> None:
    if turn.role not in ROLES:
        message = f"role {turn.role[:40]!r} is unknown"
        hint = f"use one of {', '.join(sorted(ROLES))}"
        raise BadRequest(message, field="messages", reason="role", hint=hint)
    if turn.is_open and not is_last:
        raise BadRequest("only the last turn may be open", field="messages", reason="open_turn")


def _text_item(part: TextPart | RawPart, marks: Marks) -> _Item:
    check_text(part.text, "messages")
    is_raw = isinstance(part, RawPart)
    guarded = marks.guard_template(part.text) if is_raw else marks.guard(part.text)
    return _Item("text", guarded, verbatim=(Stretch(part.text, is_template=is_raw),))


def _append(items: Sequence[_Item], item: _Item) -> list[_Item]:
    if items and items[-1].kind == "text":
        last = items[-1]
        joined = _Item("text", last.text + item.text, verbatim=last.verbatim + item.verbatim)
        return [*items[:-1], joined]
    return [*items, item]


def _content(items: Sequence[_Item], form: Form, marks: Marks) -> str | list[dict[str, Any]]:
    if form == "parts":
        return [
            {"type": "text", "text": item.text} if item.kind == "text" else {"type": item.kind}
            for item in items
        ]
    joined = "".join(
        item.text if item.kind == "text" else marks.mark("m", item.index) for item in items
    )
    return joined if form == "string" else [{"type": "text", "text": joined}]


def _verbatim(items: Sequence[_Item]) -> list[Piece]:
    return [piece for item in items for piece in item.verbatim]


def _first_text(items: Sequence[_Item]) -> str:
    first = _verbatim(items)[0]
    return first.text if isinstance(first, Stretch) else ""


def _left_out(role: str) -> BadRequest:
    message = f"the model's chat template does not write the content of role {role!r} out"
    return BadRequest(message, field="messages", reason="template")


def _miscounted() -> BadRequest:
    message = "the model's chat template does not place the media that the messages hold"
    return BadRequest(message, field="messages", reason="template")
