"""What an endpoint said to one prompt: its words, and its tokens where it tells them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.core import MmserveError

__all__ = ["Said", "Token", "read_answer"]


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer.

    Args:
        text: as the endpoint writes it.
        raw: its bytes, which may be part of a character; tokens are compared by these.
        logprob: None where it is not told, as for text that a grammar forced.
        top: the likeliest tokens of its place with their log-probabilities, best first.
    """

    text: str
    raw: bytes
    logprob: float | None = None
    top: tuple[tuple[bytes, float], ...] = ()

    def logprob_of(self, raw: bytes) -> float | None:
        """What the same place gave another token; None if that was not told. Pure."""
        return next((value for token, value in self.top if token == raw), None)


@dataclass(frozen=True, slots=True)
class Said:
    """An answer, or why there is none: `error` is (code, message).

    `tokens` is None where the endpoint tells no log-probabilities.
    """

    text: str = ""
    tokens: tuple[Token, ...] | None = None
    finish: str = ""
    error: tuple[str, str] | None = None

    @classmethod
    def failed(cls, error: MmserveError) -> Said:
        """No answer. Pure."""
        return cls(error=(error.code, str(error)))


def read_answer(reply: Mapping[str, Any]) -> Said:
    """The only choice of a chat completion. Pure.

    Raises ValueError, TypeError, KeyError, AttributeError or IndexError for another form.
    """
    choice = reply["choices"][0]
    message = choice["message"]
    told = (choice.get("logprobs") or {}).get("content")
    return Said(
        text=_words(message),
        tokens=None if told is None else tuple(map(_token, told)),
        finish=str(choice.get("finish_reason") or ""),
    )


def _words(message: Mapping[str, Any]) -> str:
    """The content; calls of tools count by their names and arguments, not by their ids."""
    words = str(message.get("content") or "")
    for call in message.get("tool_calls") or ():
        function = call["function"]
        words += f"\n{function['name']}({function.get('arguments') or ''})"
    return words


def _token(entry: Mapping[str, Any]) -> Token:
    logprob = entry.get("logprob")
    top = tuple(
        (_raw(other), float(other["logprob"]))
        for other in entry.get("top_logprobs") or ()
        if other.get("logprob") is not None
    )
    value = None if logprob is None else float(logprob)
    return Token(str(entry["token"]), _raw(entry), value, top)


def _raw(entry: Mapping[str, Any]) -> bytes:
    given = entry.get("bytes")
    return str(entry["token"]).encode() if given is None else bytes(given)
