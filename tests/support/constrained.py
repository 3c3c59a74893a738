"""Asking for answers of a given form, in every way that there is, and checking what comes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema
from PIL import Image

import mmserve as sgl
from mmserve.core import BadRequest, ConstraintRefused
from support.oracle import Asker, Reply, differ, png, same

__all__ = [
    "Answer",
    "Refusal",
    "Say",
    "begins_json",
    "canary",
    "check_all",
    "letters",
    "over_http",
    "through_language",
    "tokens_of",
]

Say = Callable[..., "list[Answer]"]
"""Takes one constraint by keyword, `n`, `max_tokens`, `temperature`, `seed`; gives answers."""
_QUESTION = "Go on."


@dataclass(frozen=True)
class Answer:
    """A text and whether it ended by itself."""

    text: str
    is_whole: bool

    @property
    def value(self) -> Any:
        """The text as JSON."""
        return json.loads(self.text)


class Refusal(Exception):
    """The request was refused; `message` and the error's `fields` or its `param`."""

    def __init__(self, message: str, param: str | None) -> None:
        super().__init__(message)
        self.message, self.param = message, param


def over_http(ask: Asker, *, stream: bool = False) -> Say:
    """Chat calls; schemas go as `response_format`."""

    def say(*, n: int = 1, **how: Any) -> list[Answer]:
        schema = how.pop("json_schema", ...)
        if schema is not ...:
            named = {"name": "answer", "schema": schema, "strict": True}
            how["response_format"] = {"type": "json_schema", "json_schema": named}
        fields = {"logprobs": False, "top_logprobs": None, "temperature": 1, "seed": 7}
        reply = ask.chat(_QUESTION, n=n, stream=stream, **{**fields, "max_tokens": 200, **how})
        if reply.status != 200:
            raise _refusal(reply)
        return _streamed(reply, n) if stream else _whole(reply)

    return say


def through_language(backend: Any) -> Say:
    """Programs of one gen."""

    def say(*, n: int = 1, max_tokens: int = 200, **how: Any) -> list[Answer]:
        @sgl.function
        def program(s: Any) -> None:
            s += sgl.user(_QUESTION) + sgl.assistant(sgl.gen("x", max_tokens, n=n, **how))

        fields = {"temperature": how.pop("temperature", 1), "seed": how.pop("seed", 7)}
        try:
            state = program.run(backend=backend, **fields)
            texts, meta = state["x"], state.get_meta_info("x")
        except (BadRequest, ConstraintRefused) as error:
            raise Refusal(str(error), error.param) from error
        pairs = zip(texts, meta, strict=True) if n > 1 else [(texts, meta)]
        return [Answer(text, one["finish_reason"]["type"] == "stop") for text, one in pairs]

    return say


def _refusal(reply: Reply) -> Refusal:
    assert reply.status == 400, reply.body
    error = reply.error
    assert error.keys() == {"message", "type", "param", "code"}
    assert "Traceback" not in error["message"]
    assert len(error["message"]) <= 500
    return Refusal(error["message"], error["param"])


def _whole(reply: Reply) -> list[Answer]:
    return [
        Answer(choice["message"]["content"], choice["finish_reason"] == "stop")
        for choice in reply.body["choices"]
    ]


def _streamed(reply: Reply, n: int) -> list[Answer]:
    texts, reasons = [""] * n, [""] * n
    words = [line.removeprefix("data: ") for line in reply.body["text"].split("\n\n")]
    assert words[-2:] == ["[DONE]", ""]
    for word in words[:-2]:
        for choice in json.loads(word)["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    return [Answer(text, reason == "stop") for text, reason in zip(texts, reasons, strict=True)]


def check_all(answers: list[Answer], schema: Mapping[str, Any] | bool) -> None:
    """Every answer ended by itself, parses without a repeated key, and is valid."""
    for answer in answers:
        assert answer.is_whole, answer
        value = json.loads(answer.text, object_pairs_hook=_without_repeats)
        checker = jsonschema.validators.validator_for(schema)
        formats = checker.FORMAT_CHECKER
        checker(schema, format_checker=formats).validate(value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


_INSIDE = ("", "0", '"', 'n"', '0"', '00"', '000"', '0000"')
_WORDS = ("rue", "ue", "e", "alse", "lse", "se", "ull", "ll", "l")
_BEHIND = ("", ":0", '"b":0', "0")


def begins_json(text: str) -> bool:
    """Whether some way to go on makes the text JSON."""
    closers: list[str] = []
    is_string = is_escaped = False
    for character in text:
        if is_escaped:
            is_escaped = False
        elif is_string:
            is_string, is_escaped = character != '"', character == "\\"
        elif character == '"':
            is_string = True
        elif character in "{[":
            closers.append("}" if character == "{" else "]")
        elif character in "}]":
            closers.pop()
    end = "".join(reversed(closers))
    return any(
        _is_json(text + inside + behind + end)
        for inside, behind in itertools.product((*_INSIDE, *_WORDS), _BEHIND)
    )


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


A, B = (png(Image.new("RGB", (64, 64), color)) for color in ("red", "blue"))


def tokens_of(ask: Asker, texts: str | list[str], value: float = 100) -> dict[str, float]:
    """A bias for the first token of each text."""
    return {
        str(ask.post("/tokenize", {"prompt": text}).body["tokens"][0]): value for text in texts
    }


def letters(ask: Asker) -> dict[str, float]:
    """A bias that lets texts run on."""
    return tokens_of(ask, "abcdefghijklmnopqrstuvwxyz", 30)


def canary(ask: Asker) -> None:
    """Text and picture questions are answered as always."""
    same(ask.chat("Hi"), ask.chat("Hi"))
    differ(ask.chat("What?", A), ask.chat("What?", B))
