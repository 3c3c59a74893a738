"""Answers of a given form: what is accepted is enforced whole, what is not is refused by name.

Each way to ask is a `say`: chat, chat streamed, a program on the engine, and over HTTP. The
small model says nothing of sense: bias or chance leads it wherever a form lets it go wrong.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field
from support.constrained import (
    Refusal,
    Say,
    begins_json,
    canary,
    check_all,
    letters,
    over_http,
    tokens_of,
)
from support.oracle import Asker

import mmserve as sgl
from mmserve.core import BadRequest, ConstraintRefused
from mmserve.engine import Engine
from mmserve.lang import ClientBackend

# O-CON-01


BAD_SCHEMAS: list[tuple[Any, str]] = [
    (5, "schema"),
    ("", "schema"),
    ({"type": "objekt"}, "type"),
    ({"type": 7}, "type"),
    ({"$ref": "#/nope"}, "ref"),
    ({"properties": []}, "properties"),
    ({"enum": []}, "enum"),
    ({"minimum": "a"}, "minimum"),
]
BAD_PATTERNS = ["[a-", "(", "*a", "a{3,1}", ""]


@pytest.mark.parametrize(("schema", "word"), BAD_SCHEMAS)
def test_a_bad_schema_is_refused_by_keyword(say: Say, schema: Any, word: str) -> None:
    """The message names the keyword; in a program the append raises."""
    with pytest.raises(Refusal) as caught:
        say(json_schema=schema)
    assert word in caught.value.message


@pytest.mark.parametrize("pattern", BAD_PATTERNS)
def test_a_bad_pattern_is_refused_by_position(say: Say, pattern: str) -> None:
    """The message tells the position, or that there is nothing."""
    with pytest.raises(Refusal, match=r"position \d|character \d|empty") as caught:
        say(regex=pattern)
    assert caught.value.param == "regex"


def test_a_bad_constraint_is_refused_where_it_is_written() -> None:
    """A program's `gen` raises before anything runs."""
    for schema, _ in BAD_SCHEMAS:
        with pytest.raises((BadRequest, ConstraintRefused)):
            sgl.gen("x", json_schema=schema)
    for pattern in BAD_PATTERNS:
        with pytest.raises(ConstraintRefused):
            sgl.gen("x", regex=pattern)


def test_bad_constraints_harm_nobody(ask: Asker) -> None:
    """Two constrained requests in flight give what they give alone, and the server goes on."""
    plain = over_http(ask)
    forms: list[dict[str, Any]] = [
        {"regex": "[a-z ]{150}"},
        {"json_schema": {"type": "string", "pattern": "^[a-z]{150}$"}},
    ]
    alone = [plain(temperature=0, **form) for form in forms]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(plain, temperature=0, **form) for form in forms]
        for stream in (False, True):
            refuse = over_http(ask, stream=stream)
            for schema, _ in BAD_SCHEMAS:
                with pytest.raises(Refusal):
                    refuse(json_schema=schema)
            for pattern in BAD_PATTERNS:
                with pytest.raises(Refusal):
                    refuse(regex=pattern)
        assert [one.result() for one in running] == alone
    assert all(answer.is_whole for answers in alone for answer in answers)
    canary(ask)


# O-CON-02


BOUNDED = [
    {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 5, "maxLength": 9},
    {"type": "string", "pattern": "^[a-z]+$", "minLength": 5},
    {"type": "string", "format": "email", "maxLength": 10},
    {
        "type": "array",
        "items": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3},
        "minItems": 2,
        "maxItems": 3,
    },
]


@pytest.mark.parametrize("schema", BOUNDED)
def test_a_pattern_hides_no_length(chat: Say, ask: Asker, schema: dict[str, Any]) -> None:
    """Where letters are wanted most, each answer still keeps all bounds, or all are refused."""
    try:
        answers = chat(json_schema=schema, n=4, logit_bias=letters(ask))
    except Refusal as refusal:
        assert re.search("pattern|format|Length", refusal.message)
        return
    whole = [answer for answer in answers if answer.is_whole]
    check_all(whole, schema)
    assert len(whole) == len(answers) or "maxLength" not in json.dumps(schema)


# O-CON-03


STEP = {
    "type": "object",
    "properties": {
        "e": {"enum": ["x", "y"]},
        "n": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["e", "n"],
    "additionalProperties": False,
}
STEPS = {
    "$defs": {"Step": STEP},
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {"$ref": "#/$defs/Step"},
            "minItems": 1,
            "maxItems": 2,
        },
        "final": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/Step"}]},
    },
    "required": ["steps", "final"],
}
AT_ROOT = {"$ref": "#/$defs/Step", "$defs": {"Step": STEP}}


@pytest.mark.parametrize("schema", [{**STEPS, "additionalProperties": False}, AT_ROOT])
def test_references_are_followed(say: Say, schema: dict[str, Any]) -> None:
    """Twenty samples at temperature 1 are valid."""
    answers = say(json_schema=schema, n=20)
    check_all(answers, schema)
    assert len({answer.text for answer in answers}) > 1


def test_an_open_object_is_valid_where_it_ends(say: Say) -> None:
    """With other keys allowed, whatever ends is valid."""
    answers = say(json_schema=STEPS, n=20, max_tokens=300)
    check_all([answer for answer in answers if answer.is_whole], STEPS)
    assert all(begins_json(answer.text) for answer in answers)


class Part(BaseModel):
    """One of several."""

    kind: Literal["a", "b"]
    size: int = Field(ge=1, le=99)


class Whole(BaseModel):
    """A class as users write it."""

    parts: list[Part] = Field(min_length=1, max_length=2)
    best: Part | None


def test_a_class_gives_its_instance(engine: Engine, server_url: str) -> None:
    """A pydantic class is a schema, and the value read is one of its instances."""

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Q") + sgl.assistant(sgl.gen("x", 200, json_schema=Whole))

    with sgl.RuntimeEndpoint(server_url) as endpoint:
        for backend in (ClientBackend(engine), endpoint):
            state = program.run(backend=backend, temperature=1, seed=2)
            assert isinstance(state.value("x"), Whole)


# O-CON-04


def test_texts_beyond_ascii_are_written_as_they_are(say: Say) -> None:
    """Keys and values of a schema are raw UTF-8, never escapes."""
    schema = {
        "type": "object",
        "properties": {"心情": {"enum": ["开心", "难过", "😀"]}},
        "required": ["心情"],
        "additionalProperties": False,
    }
    answers = say(json_schema=schema, n=6)
    check_all(answers, schema)
    for answer in answers:
        assert "心情" in answer.text
        assert "\\u" not in answer.text


CYRILLIC = "[\u0430-\u044f]{3}"


def test_patterns_and_options_beyond_ascii(say: Say, ask: Asker, engine: Engine) -> None:
    """Three Cyrillic letters by pattern; one of two names by choices and by select."""
    for answer in say(regex=CYRILLIC, n=4):
        assert re.fullmatch(CYRILLIC, answer.text)
    names = ["北京", "東京"]
    for stream in (False, True):
        (chosen,) = over_http(ask, stream=stream)(choices=names)
        assert chosen.text in names

    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Q") + sgl.assistant(sgl.gen("x", choices=names))

    assert program.run(backend=ClientBackend(engine))["x"] in names


# O-CON-05


NAMES = ["a(b)c", "x.y", "[0]", 'a"b', "back\\slash", "", "with space", "tab\t", "$ref"]


@pytest.mark.parametrize("names", [[name] for name in NAMES] + [NAMES])
def test_any_name_may_be_a_key(say: Say, names: list[str]) -> None:
    """The answer has exactly these keys."""
    text = {"type": "string", "maxLength": 3}
    schema = {
        "type": "object",
        "properties": dict.fromkeys(names, text),
        "required": names,
        "additionalProperties": False,
    }
    (answer,) = say(json_schema=schema, max_tokens=300)
    check_all([answer], schema)
    assert list(answer.value) == names


# O-CON-06


@pytest.mark.parametrize("indent", [None, " "])
def test_blanks_do_not_eat_the_budget(chat: Say, ask: Asker, indent: str | None) -> None:
    """A model that wants nothing but blanks still ends; no two stand in a row."""
    schema = {
        "type": "object",
        "properties": {
            "color": {"enum": ["red", "blue"]},
            "is_round": {"type": "boolean"},
            "count": {"type": "integer"},
        },
        "required": ["color", "is_round", "count"],
        "additionalProperties": False,
    }
    blanks = tokens_of(ask, [" ", "\n", "\t"])
    answers = chat(json_schema=schema, logit_bias=blanks, n=3)
    check_all(answers, schema)
    assert not any(re.search(r"\s\s", answer.text) for answer in answers)


# O-CON-07


HONOURED = ["^abc$", "(?i)abc", ".{2}", "a|", "(a|b)*c", r"\d{2,3}?", r"\Aab?\Z"]
REFUSED = [
    ("(?=a)a", "look-around"),
    ("(?<!a)b", "look-around"),
    (r"(a)\1", "back-reference"),
    (r"\bword\b", "boundary"),
    (r"\p{L}+", r"\\p"),
]


@pytest.mark.parametrize("pattern", HONOURED)
def test_patterns_mean_what_they_mean_in_python(say: Say, pattern: str) -> None:
    """Every answer matches as a whole."""
    for answer in say(regex=pattern, n=6):
        assert answer.is_whole
        assert re.fullmatch(pattern, answer.text), answer


@pytest.mark.parametrize(("pattern", "feature"), REFUSED)
def test_what_no_automaton_has_is_refused(say: Say, pattern: str, feature: str) -> None:
    """The message names the feature."""
    with pytest.raises(Refusal, match=feature):
        say(regex=pattern)


def test_a_range_may_begin_at_nul(say: Say) -> None:
    """Cut after five tokens, every character is of the class."""
    (answer,) = say(regex="[\x00-\u2e7f]+", max_tokens=5)
    assert re.fullmatch("[\x00-\u2e7f]*", answer.text)


def test_a_dot_is_no_line_end(chat: Say, ask: Asker) -> None:
    """However much it is wanted."""
    answers = chat(regex=".{2}", logit_bias=tokens_of(ask, ["\n"]), n=4)
    assert all(re.fullmatch(".{2}", answer.text) for answer in answers)
