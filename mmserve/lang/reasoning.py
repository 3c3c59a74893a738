r"""Thinking kept out of answers: a gen's text is parted at the marks that its model writes.

"<think>Two cups." "Two more.</think>" "\n\nFour."
 thinking ------------------------      answer
"""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import BadRequest

__all__ = ["NOTATIONS", "Notation", "ReasoningSplit", "notation_named"]


@dataclass(frozen=True, slots=True)
class Notation:
    """How a family of models marks thinking.

    `is_open` says that the prompt has opened the thinking already, so that an answer begins
    inside it, with or without `start`.
    """

    start: str = "<think>"
    end: str = "</think>"
    is_open: bool = False


NOTATIONS = {
    "deepseek-r1": Notation(is_open=True),
    "deepseek-v3": Notation(),
    "glm45": Notation(),
    "kimi": Notation("◁think▷", "◁/think▷"),
    "qwen3": Notation(),
    "qwen3-thinking": Notation(is_open=True),
    "step3": Notation(is_open=True),
}
"""Notations by the words that programs use for them."""

_DEFAULT = "qwen3"


def notation_named(model_type: str | None) -> str:
    """The name of a notation; None is that of models that open their thinking themselves.

    Raises BadRequest for an unknown one. Pure.
    """
    name = _DEFAULT if model_type is None else model_type
    if name not in NOTATIONS:
        message = f"model_type is {model_type!r}, allowed are {', '.join(NOTATIONS)}"
        raise BadRequest(message, field="model_type", reason="unknown")
    return name


class ReasoningSplit:
    """Where one answer stands in its notation. Mutable.

    White space around the thinking, and before the answer, belongs to neither. Text that may
    still become a mark is held back.
    """

    def __init__(self, notation: Notation) -> None:
        self._notation = notation
        self._stage = "before"
        self._held = ""
        self._is_blank = True  # nothing of this stage has been released

    def feed(self, piece: str) -> tuple[str, str]:
        """Thinking and answer that `piece` makes certain. Changes: the split."""
        return self._release(piece, is_last=False)

    def close(self) -> tuple[str, str]:
        """What is still held, when no more will come. Changes: the split."""
        return self._release("", is_last=True)

    def _release(self, piece: str, *, is_last: bool) -> tuple[str, str]:
        self._held += piece
        thinking = answer = ""
        if self._stage == "before":
            self._open(is_last=is_last)
        if self._stage == "thinking":
            thinking = self._think(is_last=is_last)
        if self._stage == "answer":
            answer = self._without_blank(self._held)
            self._held = ""
        return thinking, answer

    def _open(self, *, is_last: bool) -> None:
        """Find out whether the text begins with thinking. Changes: the stage, what is held."""
        begun, start = self._held.lstrip(), self._notation.start
        if begun.startswith(start):
            self._stage, self._held = "thinking", begun[len(start) :]
        elif is_last or (begun and not start.startswith(begun)):
            self._stage = "thinking" if self._notation.is_open else "answer"
            self._is_blank = self._notation.is_open  # else the answer is as the model wrote it

    def _think(self, *, is_last: bool) -> str:
        held = self._held.lstrip() if self._is_blank else self._held
        text, mark, rest = held.partition(self._notation.end)
        if mark:
            self._stage, self._held, self._is_blank = "answer", rest, True
            return text.rstrip()
        num_kept = 0 if is_last else _mark_begun(held, self._notation.end)
        certain = held[: len(held) - num_kept].rstrip()
        self._held = "" if is_last else held[len(certain) :]
        self._is_blank = self._is_blank and not certain
        return certain

    def _without_blank(self, text: str) -> str:
        if self._is_blank:
            text = text.lstrip()
            self._is_blank = not text
        return text


def _mark_begun(text: str, mark: str) -> int:
    """Letters at the end of `text` that may be the beginning of `mark`. Pure."""
    longest = min(len(text), len(mark) - 1)
    return next((k for k in range(longest, 0, -1) if text.endswith(mark[:k])), 0)
