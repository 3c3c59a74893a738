"""Answers of a type from an API that enforces none: asked for in a helpful way, then checked.

int    prompt           stop: end of line    " 42 cats"  ->  42       the number at the front
str    prompt + '"'     stop: '"'            red         ->  "red"    the value has both quotes
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mmserve.core import BackendFailed, Finish, Output, SamplingParams
from mmserve.lang.ir import REGEX_INT, REGEX_STR

__all__ = ["TypedStops", "typed_answers", "typed_stops"]

_BLANKS = (" ", "\n")
_QUOTE = '"'
_NUMBER = re.compile(r"[-+]?[0-9]+")
_TEXT = re.compile(REGEX_STR)


@dataclass(frozen=True, slots=True)
class TypedStops:
    """What is asked for: text behind the prompt, and the stops."""

    opening: str
    stops: tuple[str, ...]


def typed_stops(sampling: SamplingParams) -> TypedStops:
    """How to ask for an answer that matches the constraint. Pure.

    Raises ValueError for a pattern that is neither that of int nor that of str.
    """
    if _pattern(sampling) == REGEX_STR:
        return TypedStops(_QUOTE, (_QUOTE,))
    own = tuple(stop for stop in sampling.stop if stop not in _BLANKS)
    return TypedStops("", (*own, "\n"))


def typed_answers(
    outputs: Iterator[Output], sampling: SamplingParams, service: str
) -> Iterator[Output]:
    """Each answer at its end, brought into the form of its type.

    Raises BackendFailed for an answer that has another form, and what `outputs` raises.
    """
    is_text = _pattern(sampling) == REGEX_STR
    said: dict[int, str] = {}
    for output in outputs:
        said[output.index] = said.get(output.index, "") + output.text
        if output.finish is None:
            yield replace(output, text="")
            continue
        answer = said[output.index]
        text, finish = (
            _quoted(answer, output.finish, sampling.stop)
            if is_text
            else _whole_number(answer, output.finish)
        )
        is_over = finish.reason == "stop" and not finish.matched
        if text is None or (is_text and is_over and not _TEXT.fullmatch(text)):
            kind = "a text in quotes" if is_text else "a whole number"
            message = f"{service} answered {answer[:80]!r} where {kind} is asked for"
            raise BackendFailed(
                message, status=None, hint="say in the prompt what form the answer has"
            )
        yield replace(output, text=text, finish=finish)


def _pattern(sampling: SamplingParams) -> str:
    pattern = sampling.constraint.value if sampling.constraint is not None else ""
    if pattern not in (REGEX_INT, REGEX_STR):
        message = f"answers of the form {pattern!r} cannot be asked for"
        raise ValueError(message)
    return pattern


def _whole_number(answer: str, finish: Finish) -> tuple[str | None, Finish]:
    stripped = answer.strip(" \n")
    found = _NUMBER.match(stripped)
    if found is None:
        is_begun = finish.reason == "length" and stripped in ("", "-", "+")
        return (stripped, finish) if is_begun else (None, finish)
    if found.end() < len(stripped):
        return found.group(), Finish("stop")
    return found.group(), finish


def _quoted(answer: str, finish: Finish, stops: tuple[str, ...]) -> tuple[str | None, Finish]:
    text = _QUOTE + answer + (_QUOTE if finish.reason == "stop" else "")
    found = [(text.index(stop), -len(stop), stop) for stop in stops if stop in text]
    if found:
        place, _, stop = min(found)
        return text[:place], Finish("stop", stop)
    return text, Finish("stop") if finish.reason == "stop" else finish
