"""Tools on a real engine, through the unmodified `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
from support.checkpoints import tiny_llava
from support.oracle import differ, image_part

from mmserve.core import EngineConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

MESSAGES = [{"role": "user", "content": "How is the weather?"}]
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome", "Kyōto"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TIME = {
    "$defs": {"zone": {"enum": ["CET", "UTC"]}},
    "type": "object",
    "properties": {"zone": {"$ref": "#/$defs/zone"}},
    "required": ["zone"],
    "additionalProperties": False,
}
SCHEMAS = {"weather": WEATHER, "time": TIME}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}
    for name, schema in SCHEMAS.items()
]
NAMED: Any = {"type": "function", "function": {"name": "time"}}


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server with room for definitions, a byte of which is a token."""
    config = EngineConfig(
        model=str(tiny_llava(context=2048)),
        served_name="tiny",
        num_slots=16384,
        threads=1,
        verify_steps=True,
    )
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        yield server.url


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    """A client that tries once."""
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="any", max_retries=0) as client:
        yield client


def create(client: openai.OpenAI, **fields: Any) -> Any:
    """A chat call with two tools."""
    asked: dict[str, Any] = {"model": "default", "messages": MESSAGES, "tools": TOOLS}
    return client.chat.completions.create(**{**asked, "max_tokens": 90, "seed": 3, **fields})


def joined(stream: Any) -> dict[int, tuple[list[tuple[str, str]], str | None]]:
    """(name and arguments of each call, finish) by choice, joined as any client would."""
    calls: dict[int, list[list[str]]] = {}
    ends: dict[int, str | None] = {}
    for chunk in stream:
        for choice in chunk.choices:
            found = calls.setdefault(choice.index, [])
            for call in choice.delta.tool_calls or ():
                if call.id:
                    found.append([call.function.name, ""])
                    assert call.index == len(found) - 1
                found[call.index][1] += call.function.arguments
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    return {
        index: ([(name, arguments) for name, arguments in found], ends[index])
        for index, found in calls.items()
    }


def told(answer: Any) -> dict[int, tuple[list[tuple[str, str]], str | None]]:
    """The same of a whole answer."""
    return {
        choice.index: (
            [(c.function.name, c.function.arguments) for c in choice.message.tool_calls or ()],
            choice.finish_reason,
        )
        for choice in answer.choices
    }


@pytest.mark.parametrize(("choice", "reason"), [("required", "tool_calls"), (NAMED, "stop")])
def test_forced_calls_are_valid(client: openai.OpenAI, choice: Any, reason: str) -> None:
    """Of six samples each is one call whose arguments match; streams join to the same."""
    asked = {"tool_choice": choice, "n": 6, "temperature": 1.5}
    answer = create(client, **asked)
    found = told(answer)
    assert joined(create(client, **asked, stream=True)) == found
    for choice_ in answer.choices:
        assert (choice_.message.content, choice_.finish_reason) == (None, reason)
        (call,) = choice_.message.tool_calls
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({str(calls) for calls, _ in found.values()}) > 1
    if choice is NAMED:
        assert {name for calls, _ in found.values() for name, _ in calls} == {"time"}
    total = answer.usage.completion_tokens
    assert total > 6
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + total


def test_a_call_that_is_cut_ends_for_length(client: openai.OpenAI) -> None:
    """Its arguments so far are told, the same in a stream."""
    whole = told(create(client, tool_choice=NAMED, temperature=0))
    asked = {"tool_choice": NAMED, "temperature": 0, "max_tokens": 3}
    short = told(create(client, **asked))
    ((_, arguments),), reason = short[0]
    assert reason == "length"
    assert whole[0][0][0][1].startswith(arguments)
    assert joined(create(client, **asked, stream=True)) == short


def test_a_round_trip(client: openai.OpenAI, pictures: tuple[bytes, bytes]) -> None:
    """Call, result, answer: the result and its pictures change what the model says."""
    call = create(client, tool_choice="required").choices[0].message

    def answer(*content: Any) -> Any:
        result = {
            "role": "tool",
            "tool_call_id": call.tool_calls[0].id,
            "content": list(content),
        }
        return create(
            client,
            messages=[*MESSAGES, call, result],
            max_tokens=6,
            temperature=0,
            logprobs=True,
            top_logprobs=5,
        )

    text = {"type": "text", "text": "Rain, 4 degrees."}
    plain, first, second = (
        answer(*parts)
        for parts in ([text], [text, image_part(pictures[0])], [text, image_part(pictures[1])])
    )
    usages = [one.usage.to_dict() for one in (plain, first, second)]
    assert usages[0]["prompt_tokens"] < usages[1]["prompt_tokens"] == usages[2]["prompt_tokens"]
    scores = [one.choices[0].logprobs.content[0].top_logprobs for one in (first, second)]
    numbers = [{tuple(one.bytes): one.logprob for one in tops} for tops in scores]
    assert numbers[0] != pytest.approx(numbers[1], abs=1e-2)


def test_pictures_in_results_count(ask: Any, pictures: tuple[bytes, bytes]) -> None:
    """Of two answers about a tool's picture, each follows its picture."""
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "call_1", "type": "function", "function": function}

    def answer(picture: bytes) -> Any:
        content = [{"type": "text", "text": "Seen:"}, image_part(picture)]
        return ask.messages(
            [
                {"role": "user", "content": "Look."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call_1", "content": content},
            ]
        )

    one, two = map(answer, pictures)
    assert one.image_tokens == two.image_tokens > 0
    differ(one, two)


def test_tools_are_in_the_prompt(client: openai.OpenAI, ask: Any) -> None:
    """The model sees names and schemas, but none if none may be called."""
    prompts = {}
    for choice in ("auto", "none"):
        body = {"messages": MESSAGES, "tools": TOOLS, "tool_choice": choice}
        ids = ask.post("/tokenize", body).body["tokens"]
        prompts[choice] = ask.post("/detokenize", {"tokens": ids}).body["text"]
    assert '"name": "weather"' in prompts["auto"]
    assert '"minimum": 1' in prompts["auto"]
    assert "weather" not in prompts["none"].replace("How is the weather?", "")


def test_a_free_answer_is_text(client: openai.OpenAI) -> None:
    """What a model of noise says is no call, and the same streamed."""
    asked = {"temperature": 0, "max_tokens": 12}
    whole = create(client, **asked).choices[0]
    assert whole.message.tool_calls is None
    chunks = list(create(client, **asked, stream=True))
    text = "".join(one.choices[0].delta.content or "" for one in chunks)
    assert text == whole.message.content


class Place(BaseModel):
    """A class as users write it."""

    city: Literal["Oslo", "Rome"]
    days: int | None


class Forecast(BaseModel):
    """A class with another inside."""

    place: Place
    kind: Literal["sun", "rain"]


def test_parsed_classes(client: openai.OpenAI) -> None:
    """The client's `parse` gives an instance, of a format and of a forced call."""
    asked: dict[str, Any] = {"model": "default", "messages": MESSAGES, "max_tokens": 120}
    answer = client.chat.completions.parse(**asked, response_format=Forecast)
    assert isinstance(answer.choices[0].message.parsed, Forecast)
    tool = openai.pydantic_function_tool(Forecast, name="forecast")
    answer = client.chat.completions.parse(**asked, tools=[tool], tool_choice="required")
    (call,) = answer.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Forecast)
    back = [*MESSAGES, answer.choices[0].message]
    back.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
    again = create(client, messages=back, tools=[tool], max_tokens=3)
    assert again.choices[0].finish_reason in ("length", "stop")


def test_the_stream_helper_joins_calls(client: openai.OpenAI) -> None:
    """The client's own accumulator ends with the call of the whole answer."""
    asked: dict[str, Any] = {"model": "default", "messages": MESSAGES, "tools": TOOLS}
    asked |= {"tool_choice": "required", "seed": 5, "max_tokens": 90}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    assert told(final) == told(whole)


def test_either_a_call_or_the_form(client: openai.OpenAI) -> None:
    """With a schema and free choice, each of eight samples is a call or of the schema."""
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2}
    form = {"type": "json_schema", "json_schema": {"name": "l", "schema": schema}}
    answer = create(client, response_format=form, n=8, temperature=2.0)
    for choice in answer.choices:
        if choice.message.tool_calls:
            (call,) = choice.message.tool_calls
            jsonschema.validate(
                json.loads(call.function.arguments), SCHEMAS[call.function.name]
            )
        else:
            jsonschema.validate(json.loads(choice.message.content), schema)


DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
GENERATED: list[dict[str, Any]] = [
    {
        "$schema": DRAFT_7,
        "$ref": "#/definitions/trip",
        "definitions": {
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "trip": {
                "type": "object",
                "properties": {"days": {"$ref": "#/definitions/days"}},
                "required": ["days"],
                "additionalProperties": False,
            },
        },
    },
    {
        "$schema": DRAFT_4,
        "id": "http://localhost/trip.json",
        "type": "object",
        "properties": {
            "days": {"$ref": "http://localhost/trip.json#/definitions/days"},
        },
        "required": ["days"],
        "additionalProperties": False,
        "definitions": {
            "days": {
                "type": "integer",
                "minimum": 0,
                "exclusiveMinimum": True,
                "maximum": 9,
            }
        },
    },
    {**TIME, "$id": "http://localhost/time.json"},
]


@pytest.mark.parametrize("choice", ["required", {**NAMED, "function": {"name": "f0"}}])
def test_generated_parameters_of_all_drafts(client: openai.OpenAI, choice: Any) -> None:
    """References at the root, ids and drafts, as generators write them, side by side."""
    schemas = {f"f{number}": schema for number, schema in enumerate(GENERATED)}
    tools = [
        {"type": "function", "function": {"name": name, "parameters": schema}}
        for name, schema in schemas.items()
    ]
    answer = create(client, tools=tools, tool_choice=choice, n=6, temperature=1.5)
    for one in answer.choices:
        (call,) = one.message.tool_calls
        schema = schemas[call.function.name]
        validator = jsonschema.validators.validator_for(schema)
        validator(schema).validate(json.loads(call.function.arguments))


@pytest.mark.parametrize("stream", [False, True])
def test_bad_parameters_are_refused(client: openai.OpenAI, stream: bool) -> None:
    """The client's own error names the tool's place; the server goes on."""
    bad = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    tools = [*TOOLS, {"type": "function", "function": {"name": "bad", "parameters": bad}}]
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, tools=tools, tool_choice="required", stream=stream)
    assert caught.value.param == "tools[2].function.parameters"
    assert "'type' at #/properties/a" in caught.value.message
    form: Any = {"type": "json_schema", "json_schema": {"name": "b", "schema": bad}}
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, response_format=form, stream=stream)
    assert caught.value.param == "response_format"
    assert "'type' at #/properties/a" in caught.value.message
    assert told(create(client, tool_choice=NAMED))[0][1] == "stop"
