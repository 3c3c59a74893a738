"""Questions as clients send them: their kind, their options, and what each option stands for.

choice    choices: 2 to 256 texts                        the text
score     min, max: whole numbers, at most 256 in all    the number
          labels: [{"label": text, "value": number}]     the label, and its value
yes_no                                                   yes and no, in either spelling
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mmserve.core import BadRequest
from mmserve.server.fields import Body, integer, list_of, number, short_text, text, word, wrong

__all__ = ["Option", "Question", "take_questions"]

_MAX_QUESTIONS = 256
_MAX_OPTIONS = 256
_LIMIT = 10**9
_WHOLE = integer(-_LIMIT, _LIMIT)
_VALUE = number(-_LIMIT, _LIMIT)


@dataclass(frozen=True, slots=True)
class Option:
    """One text that may answer; texts of one `name` are one answer.

    `value` is what a score stands for.
    """

    text: str
    name: str
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question: `words` may be empty if the state asks by itself."""

    question_id: str
    kind: str
    words: str
    options: tuple[Option, ...]
    is_whole: bool = False
    """Whether its answer is a whole number rather than a text."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts to score, in order. Pure."""
        return tuple(option.text for option in self.options)

    def answer(self, name: str) -> str | int:
        """The answer of this name as JSON has it. Pure."""
        return int(name) if self.is_whole else name


def take_questions(value: object, name: str) -> tuple[Question, ...]:
    """All questions, each with an id of its own. Raises BadRequest. Pure."""
    questions = list_of(_question, most=_MAX_QUESTIONS)(value, name)
    if not questions:
        raise wrong(name, [], "a list of at least one question")
    told = tuple(
        replace(question, question_id=question.question_id or str(position))
        for position, question in enumerate(questions)
    )
    _check_unique([question.question_id for question in told], name, "id")
    return told


def _question(value: object, name: str) -> Question:
    body = Body(value, name)
    question_id = body.take("id", _id, "")
    words = body.take("question", text, "")
    kind = body.need("type", word(*_KINDS))
    options, is_whole = _KINDS[kind](body)
    body.finish()
    return Question(question_id, kind, words, options, is_whole)


def _id(value: object, name: str) -> str:
    words = short_text(value, name)
    if not words:
        raise wrong(name, value, "a string of 1 to 256 characters")
    return words


def _choice(body: Body) -> tuple[tuple[Option, ...], bool]:
    choices = body.need("choices", list_of(_option_text))
    name = body.name("choices")
    _check_count(len(choices), name)
    _check_unique(choices, name)
    return tuple(Option(choice, choice) for choice in choices), False


def _score(body: Body) -> tuple[tuple[Option, ...], bool]:
    labels = body.take("labels", list_of(_label), None)
    if labels is not None:
        for field in ("min", "max"):
            if body.has(field):
                message = f"{body.name('labels')} and {field} are given, a score takes one"
                raise BadRequest(message, field=body.name(field), reason="conflict")
            body.neutral(field)
        name = body.name("labels")
        _check_count(len(labels), name)
        _check_unique([label.text for label in labels], name, "label")
        return labels, False
    low = body.need("min", _WHOLE)
    high = body.need("max", _WHOLE)
    if not 1 <= high - low < _MAX_OPTIONS:
        raise wrong(body.name("max"), high, f"{low + 1} to {low + _MAX_OPTIONS - 1}")
    return tuple(Option(str(n), str(n), n) for n in range(low, high + 1)), True


def _yes_no(_body: Body) -> tuple[tuple[Option, ...], bool]:
    spellings = ("yes", "Yes"), ("no", "No")
    return tuple(Option(words, both[0]) for both in spellings for words in both), False


def _label(value: object, name: str) -> Option:
    body = Body(value, name)
    label = body.need("label", _option_text)
    option = Option(label, label, body.need("value", _VALUE))
    body.finish()
    return option


def _option_text(value: object, name: str) -> str:
    words = text(value, name)
    if not words:
        raise wrong(name, value, "a text that is not empty")
    return words


def _check_count(num_options: int, name: str) -> None:
    if not 2 <= num_options <= _MAX_OPTIONS:
        message = f"{name} has {num_options} entries, allowed are 2 to {_MAX_OPTIONS}"
        raise BadRequest(message, field=name, reason="value")


def _check_unique(words: Sequence[str], name: str, field: str = "") -> None:
    first: dict[str, int] = {}
    for position, one in enumerate(words):
        earlier = first.setdefault(one, position)
        if earlier != position:
            place = f"{name}[{position}]" + (f".{field}" if field else "")
            message = f"{place} is the same as entry {earlier}"
            raise BadRequest(message, field=place, reason="twice")


_KINDS: dict[str, Callable[[Body], tuple[tuple[Option, ...], bool]]] = {
    "choice": _choice,
    "score": _score,
    "yes_no": _yes_no,
}
