"""Turns through a chat template to stretches of text and slots for media.

Users' texts pass through the template with marks (see `marks`), so the template's own trims
and tests act on them. How a message's content is handed over is found out once per role and
shape, by rendering the same conversation with probes in place of texts:

    string   text in one string; media as marks in it
    joined   the same string as the only text part of a list, for templates that take only lists
    parts    text and media parts in a list, if the template then keeps their order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mmserve.core import BadRequest, ImagePart, RawPart, TextPart, Turn, VideoPart
from mmserve.prompt.forms import Form, Forms, Shape
from mmserve.prompt.marks import Mark, Marks, Spellings
from mmserve.prompt.styles import PictureStyle, Slot
from mmserve.prompt.template import ChatTemplate
from mmserve.prompt.tokenizer import Stretch, Tokenizer, check_text

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

    def render(self, turns: Sequence[Turn], first_index: int) -> list[Piece]:
        """Stretches and slots of one conversation; its media count from `first_index`.

        Raises:
            BadRequest: an unknown role, an open turn before the last, half of a surrogate pair,
                or a conversation that the template refuses or does not write out in full.
        """
        marks = Marks(self._spellings)
        contents: list[list[_Item]] = []
        for turn in turns:
            _check_turn(turn, is_last=turn is turns[-1])
            contents.append(self._items(turn, marks, first_index))
            first_index += sum(isinstance(part, ImagePart | VideoPart) for part in turn.parts)
        if turns[-1].is_open:
            return self._open(turns, contents, marks)
        return self._pieces(self._rendered(turns, contents, marks), contents, marks)

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
        self, turns: Sequence[Turn], contents: list[list[_Item]], marks: Marks
    ) -> list[Piece]:
        """The last turn without its end.

        An assistant's turn continues the template's generation prompt word for word, unless the
        template would put more (a blank, say) before a text that does not bring it along.
        """
        before = self._prompted(turns, contents, marks)
        last = contents[-1]
        if before is not None and not last:
            return self._pieces(before, contents[:-1], marks)
        end = _Item("text", marks.mark("e"))
        if before is not None:
            bare = self._cut(turns, [*contents[:-1], [end]], marks)
            lead = bare.removeprefix(before)
            if not bare.startswith(before) or _first_text(last).startswith(lead):
                return self._pieces(before, contents[:-1], marks) + _verbatim(last)
        ended = [*contents[:-1], _append(last, end)]
        return self._pieces(self._cut(turns, ended, marks), ended, marks)

    def _prompted(
        self, turns: Sequence[Turn], contents: list[list[_Item]], marks: Marks
    ) -> str | None:
        """Everything before an open assistant turn's text, or None for other roles."""
        if turns[-1].role != "assistant" or len(turns) == 1:
            return None
        return self._rendered(turns[:-1], contents[:-1], marks, add_generation_prompt=True)

    def _cut(self, turns: Sequence[Turn], contents: list[list[_Item]], marks: Marks) -> str:
        before, found, _ = self._rendered(turns, contents, marks).rpartition(marks.mark("e"))
        if not found:
            raise _left_out(turns[-1].role)
        return before

    def _rendered(
        self,
        turns: Sequence[Turn],
        contents: Sequence[Sequence[_Item]],
        marks: Marks,
        *,
        add_generation_prompt: bool = False,
    ) -> str:
        shapes = [
            Shape(turn.role, tuple(item.kind for item in items))
            for turn, items in zip(turns, contents, strict=True)
        ]
        forms = self._forms.choose(shapes)
        messages = [
            {"role": shape.role, "content": _content(items, form, marks)}
            for shape, items, form in zip(shapes, contents, forms, strict=True)
        ]
        return self._template.render(messages, add_generation_prompt=add_generation_prompt)

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
