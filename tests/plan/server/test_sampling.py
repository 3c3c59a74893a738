"""Sampling fields, derived from the core's declaration."""

from __future__ import annotations

from dataclasses import fields

import pytest
from support.echo_client import MODEL

from mmserve.core import BadRequest, Constraint, SamplingParams
from mmserve.server.fields import Body
from mmserve.server.sampling import (
    NATIVE_NAMES,
    OPENAI_NAMES,
    build_sampling,
    take_openai_constraint,
    take_sampling,
    take_text_constraint,
)


def openai(**given: object) -> SamplingParams:
    """Parameters of a chat body."""
    body = Body(given)
    params = build_sampling(take_sampling(body, OPENAI_NAMES), OPENAI_NAMES, MODEL)
    body.finish()
    return params


def test_every_declared_number_has_a_wire_name() -> None:
    """Each numeric field at the ends of its range is read; beyond them it is refused."""
    for spec in fields(SamplingParams):
        is_set_elsewhere = spec.name in {"top_logprobs", "prompt_logprobs_from"}
        if "low" not in spec.metadata or is_set_elsewhere:
            continue
        name = NATIVE_NAMES.get(spec.name, spec.name)
        for end in ("low", "high"):
            value = spec.metadata[end]
            assert take_sampling(Body({name: value}), NATIVE_NAMES)[spec.name] == value
        for value in (spec.metadata["low"] - 1, spec.metadata["high"] + 1, "1", True, [1]):
            with pytest.raises(BadRequest) as caught:
                take_sampling(Body({name: value}), NATIVE_NAMES)
            assert caught.value.param == name


def test_refusals_name_the_field_as_it_was_written() -> None:
    """A check of the core speaks of `max_tokens` where the client did."""
    with pytest.raises(BadRequest) as caught:
        openai(min_tokens=5, max_tokens=3)
    assert caught.value.param == "min_tokens"
    assert "max_tokens" in caught.value.message


@pytest.mark.parametrize(
    "bias",
    [{"AI": 1}, {"-1": 5}, {"191222": -100}, {"3": "x"}, {"3": 1e9}, {"03": 1, "3": 1}, [1]],
)
def test_bias_needs_tokens_of_the_vocabulary(bias: object) -> None:
    """Words, ids outside, odd values and doubles are refused under the field's name."""
    with pytest.raises(BadRequest) as caught:
        openai(logit_bias=bias)
    assert caught.value.param == "logit_bias"


def test_bias_is_read() -> None:
    """Decimal keys become ids."""
    assert openai(logit_bias={"3": -100, "7": 1.5}).logit_bias == ((3, -100.0), (7, 1.5))


def test_stop_is_a_text_or_several() -> None:
    """One text and a list of it mean the same; an empty text is refused."""
    assert openai(stop="x").stop == openai(stop=["x"]).stop == ("x",)
    for wrong in ("", ["a", ""], [1], 5):
        with pytest.raises(BadRequest):
            openai(stop=wrong)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, Constraint("json_object", "")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "strict": True, "schema": {"type": "null"}},
                }
            },
            Constraint("json_schema", '{"type": "null"}'),
        ),
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"regex": ""}, Constraint("regex", "")),
        ({"ebnf": "root ::= x"}, Constraint("ebnf", "root ::= x")),
        ({"choices": ["é", "b"]}, Constraint("choices", '["é", "b"]')),
        ({"json_schema": {"type": "null"}}, Constraint("json_schema", '{"type": "null"}')),
        ({"json_schema": "{}"}, Constraint("json_schema", "{}")),
    ],
)
def test_constraints_are_read(given: dict, want: Constraint | None) -> None:
    """Each way to constrain an answer gives its constraint, and the field it came from."""
    body = Body(given)
    asked = take_openai_constraint(body)
    body.finish()
    assert (asked and asked.constraint) == want
    assert asked is None or asked.field in given


@pytest.mark.parametrize(
    "given",
    [
        {"regex": "a", "json_schema": {}},
        {"response_format": {"type": "json_object"}, "choices": ["a"]},
        {"choices": []},
        {"choices": [1]},
        {"regex": 5},
        {"json_schema": 5},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": ""}}},
        {"response_format": {"type": "json_object", "json_schema": {"schema": {}}}},
        {"response_format": {"type": "json_object", "tone": 1}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "x": 1}}},
        {"response_format": "json_object"},
    ],
)
def test_wrong_constraints_are_refused(given: dict) -> None:
    """Two at once, none to choose from, wrong kinds and half-given formats are refused."""
    with pytest.raises(BadRequest):
        take_openai_constraint(Body(given))


def test_native_constraints_may_be_empty() -> None:
    """An empty text is no constraint there."""
    body = Body({"regex": "", "ebnf": "", "json_schema": '{"type": "null"}'})
    assert take_text_constraint(body) == Constraint("json_schema", '{"type": "null"}')
    assert take_text_constraint(Body({"regex": ""})) is None


def test_native_choices_are_a_constraint() -> None:
    """Options as a list; with another constraint they are two at once, both named."""
    body = Body({"choices": ["é", "b"]}, "sampling_params")
    assert take_text_constraint(body) == Constraint("choices", '["é", "b"]')
    with pytest.raises(BadRequest, match="regex and choices") as caught:
        take_text_constraint(Body({"choices": ["a"], "regex": "b"}, "sampling_params"))
    assert caught.value.param == "sampling_params.choices"
