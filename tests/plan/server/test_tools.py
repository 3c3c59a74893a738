"""Tools of the chat route on an echo: what is asked of the answer, and how it is told."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.site import events_of

from mmserve.core import ConstraintRefused
from mmserve.server.chat.tools_auto import read_calls
from mmserve.server.chat.tools_calls import CallReader, message_of
from mmserve.server.chat.tools_schema import call_schema, rooted

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


DEEP: Any = {}
for _ in range(150):
    DEEP = {"not": DEEP}


def tool(name: str = "weather", **function: Any) -> dict[str, Any]:
    """A function tool."""
    return {"type": "function", "function": {"name": name, "parameters": CITY, **function}}


NAMED = {"type": "function", "function": {"name": "weather"}}
TOOLS = [tool(), tool("time-of_day", description="What time is it?", parameters=None)]


def asked(site: Any) -> Any:
    """The request that the engine got last."""
    return site.client.requests[-1]


def schema_of(site: Any) -> Any:
    """The schema of the last request's answer."""
    constraint = asked(site).sampling.constraint
    assert constraint.kind == "json_schema"
    return json.loads(constraint.value)


def streamed(response: Any) -> tuple[dict[str, Any], str]:
    """The message that the deltas of the only choice join to, and its finish."""
    choices = [event["choices"][0] for event in events_of(response)[:-1]]
    deltas = [choice["delta"] for choice in choices]
    assert deltas.pop(0) == {"role": "assistant", "content": None}
    return message_of(deltas, is_text=False), choices[-1]["finish_reason"]


def told(response: Any) -> tuple[dict[str, Any], str]:
    """The message of the only choice, and its finish."""
    (choice,) = response.json()["choices"]
    return choice["message"], choice["finish_reason"]


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """The message, its ids checked for their form."""
    calls = message.get("tool_calls", [])
    assert all(call["id"].startswith("call_") and len(call["id"]) == 29 for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return {**message, "tool_calls": [call["function"] for call in calls]}


def both(site: Any, answer: str, **fields: Any) -> tuple[dict[str, Any], str]:
    """What is told of an answer, whole and streamed, which must agree."""
    whole, reason = told(site.chat(answer, **fields))
    message, last = streamed(site.chat(answer, stream=True, **fields))
    assert (without_ids(message), last) == (without_ids(whole), reason)
    return without_ids(whole), reason


def test_a_named_function_asks_for_its_arguments(site: Any) -> None:
    """The answer matches the parameters and is told as that call, with "stop" as OpenAI."""
    message, reason = both(site, '{"city": "Oslo"}', tools=TOOLS, tool_choice=NAMED)
    assert message["content"] is None
    assert message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "Oslo"}'}]
    assert reason == "stop"
    assert schema_of(site) == CITY


def test_required_asks_for_any_call(site: Any) -> None:
    """Name and arguments, in this order, of one of the tools; a call takes none by default."""
    answer = '{"name":"time-of_day","arguments":{"a":"}\\"{"}}'
    message, reason = both(site, answer, tools=TOOLS, tool_choice="required")
    assert message["content"] is None
    assert message["tool_calls"] == [{"name": "time-of_day", "arguments": '{"a":"}\\"{"}'}]
    assert reason == "tool_calls"
    schema = schema_of(site)
    assert [list(one["properties"]) for one in schema["anyOf"]] == [["name", "arguments"]] * 2
    jsonschema.validate({"name": "time-of_day", "arguments": {}}, schema)
    jsonschema.validate({"name": "weather", "arguments": {"city": "x"}}, schema)
    wrongs: list[Any] = [("weather", {}), ("x", {}), ("time-of_day", {"a": 1})]
    for wrong in [{"name": name, "arguments": arguments} for name, arguments in wrongs]:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


@pytest.mark.parametrize("limit", [3, 12, 30, 44])
def test_a_call_that_is_cut_is_told_so_far(site: Any, limit: int) -> None:
    """The reason is "length"; without its name there is no call."""
    answer = '{"name":"weather","arguments":{"city":"Trondheim"}}'
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": limit}
    message, reason = both(site, answer, **asked)
    _, is_named, begun = answer[:limit].partition('"arguments":')
    assert message["tool_calls"] == [{"name": "weather", "arguments": begun}] * bool(is_named)
    assert (message["content"], reason) == (None, "length")


FREE = [
    ("It is cold.", []),
    ('{"name": "other", "arguments": {}}', []),
    ('{"name": "weather"}', []),
    ('{"name": "weather", "arguments": {}} and more', []),
    ("<tool_call>weather</tool_call>", []),
    ("{", []),
    (" ", []),
    ('{"name": "weather", "arguments": {"city": "Oslo"}}', ["Oslo"]),
    ('[{"name": "weather", "parameters": {"city": "Oslo"}}]', ["Oslo"]),
    ('<tool_call>\n{"name": "weather", "arguments": {"city": "Å"}}\n</tool_call>', ["Å"]),
    ('<tool_call>{"arguments": {"city": "A"}, "name": "weather"}</tool_call>\n' * 2, ["A"] * 2),
]


@pytest.mark.parametrize(("answer", "cities"), FREE)
def test_a_free_answer_is_calls_or_text(site: Any, answer: str, cities: list[str]) -> None:
    """Calls if the whole of it is calls of known tools; text, all of it, otherwise."""
    site.client.answers["?"] = answer
    message, reason = both(site, "?", tools=TOOLS)
    expected = [
        {"name": "weather", "arguments": json.dumps({"city": city}, ensure_ascii=False)}
        for city in cities
    ]
    assert message["tool_calls"] == expected
    assert message["content"] == (None if cities else answer)
    assert reason == ("tool_calls" if cities else "stop")
    assert asked(site).sampling.constraint is None


def test_an_empty_free_answer_is_empty_text(site: Any) -> None:
    """Its content is "", as without tools, and not null."""
    site.client.answers["?"] = ""
    message, _ = both(site, "?", tools=TOOLS)
    assert (message["content"], message["tool_calls"]) == ("", [])


def test_text_is_streamed_as_soon_as_it_is_no_call(site: Any) -> None:
    """A word comes at once, a JSON object as soon as its first name is not a call's."""
    for answer, first in (("word", "w"), ('{"a": 1}', '{"a')):
        events = events_of(site.chat(answer, tools=TOOLS, stream=True))[:-1]
        deltas = [event["choices"][0]["delta"] for event in events]
        assert deltas[1] == {"content": first}


def test_one_call_at_a_time(site: Any) -> None:
    """Without parallel calls the first of several is told."""
    answer = json.dumps([{"name": "weather", "arguments": {"city": city}} for city in "AB"])
    message, _ = both(site, answer, tools=TOOLS, parallel_tool_calls=False)
    assert message["tool_calls"] == [{"name": "weather", "arguments": '{"city": "A"}'}]
    message, _ = both(site, answer, tools=TOOLS)
    assert len(message["tool_calls"]) == 2


def test_tools_are_shown_to_the_model_unless_none_may_be_called(site: Any) -> None:
    """All definitions go along, a named function's too; with "none" there are none."""
    for choice in ("auto", "required", NAMED, None):
        site.chat("x", tools=TOOLS, tool_choice=choice)
        shown = [json.loads(one)["function"] for one in asked(site).tools]
        assert [one["name"] for one in shown] == ["weather", "time-of_day"]
        assert shown[0]["parameters"] == CITY
    response = site.chat("x", tools=TOOLS, tool_choice="none")
    assert told(response)[0] == {"role": "assistant", "content": "x", "refusal": None}
    assert asked(site).tools == ()


def test_samples_are_calls_of_their_own(site: Any) -> None:
    """Each of three choices has a call, with an id of its own; usage counts all tokens."""
    response = site.chat('{"city": "Oslo"}', tools=TOOLS, tool_choice=NAMED, n=3)
    calls = [choice["message"]["tool_calls"][0] for choice in response.json()["choices"]]
    assert len({call["id"] for call in calls}) == 3
    assert response.json()["usage"]["completion_tokens"] == 3 * len('{"city": "Oslo"}')


def test_reports_of_a_call_are_complete(site: Any) -> None:
    """Log-probabilities and ids of a streamed call are those of the whole one."""
    answer = '{"name":"weather","arguments":{"city":"O"}}'
    fields = {"tools": TOOLS, "tool_choice": "required", "logprobs": True}
    fields["return_token_ids"] = True
    (whole,) = site.chat(answer, **fields).json()["choices"]
    events = events_of(site.chat(answer, stream=True, **fields))[:-1]
    choices = [event["choices"][0] for event in events]
    ids = [one for choice in choices for one in choice.get("token_ids", [])]
    scores = [one for c in choices if c["logprobs"] for one in c["logprobs"]["content"]]
    assert ids == whole["token_ids"] == list(answer.encode())
    assert scores == whole["logprobs"]["content"]


SHAPE = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "null"}}}


def test_a_free_answer_may_have_a_form(site: Any) -> None:
    """With a schema and tools, the answer is either a call or of the schema."""
    site.chat("null", tools=TOOLS, response_format=SHAPE)
    schema = schema_of(site)
    jsonschema.validate(None, schema)
    jsonschema.validate({"name": "weather", "arguments": {"city": "x"}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({}, schema)
    site.chat("{}", tools=TOOLS, response_format={"type": "json_object"})
    assert asked(site).sampling.constraint.kind == "json_object"


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "required", "response_format": SHAPE}, "tool_choice response_format"),
        ({"tool_choice": NAMED, "regex": "a"}, "tool_choice regex"),
        ({"regex": "a"}, "tools regex"),
        ({"tool_choice": "none", "regex": "a", "choices": ["b"]}, "regex choices"),
    ],
)
def test_two_forms_at_once_are_refused(site: Any, fields: dict[str, Any], names: str) -> None:
    """The message names both, the parameter is the one that came second."""
    error = site.refused(site.chat("x", tools=TOOLS, **fields))
    first, second = names.split()
    assert f"{first} and {second} are given" in error["message"]
    assert error["param"] == second


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [5]}, "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [tool("a b")]}, "tools[0].function.name"),
        ({"tools": [tool("x" * 65)]}, "tools[0].function.name"),
        ({"tools": [tool(), tool()]}, "tools[1].function.name"),
        ({"tools": [tool(strict="yes")]}, "tools[0].function.strict"),
        ({"tools": [tool(tone=1)]}, "tools[0].function.tone"),
        ({"tools": [tool(parameters=[])]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters.type"),
        ({"tools": [tool()] * 129}, "tools"),
        ({"tools": [tool(parameters=DEEP)]}, "tools[0].function.parameters"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 5}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": 1}, "parallel_tool_calls"),
    ],
)
def test_wrong_tools_are_refused_by_name(site: Any, fields: dict[str, Any], param: str) -> None:
    """A 400 names the place, the same for a stream."""
    for stream in (False, True):
        assert site.refused(site.chat("x", stream=stream, **fields))["param"] == param


def test_the_older_form_is_refused_with_the_way_out(site: Any) -> None:
    """`functions` and `function_call` say what to send."""
    for field, newer in (("functions", "tools"), ("function_call", "tool_choice")):
        error = site.refused(site.chat("x", **{field: [{"name": "f"}]}))
        assert f"hint: send {newer}" in error["message"]


GOOD: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "x"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "c",
                    "type": "function",
                    "function": {"name": "weather", "arguments": "{}"},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "c", "content": "y"},
    ],
    "tools": TOOLS,
    "tool_choice": NAMED,
    "parallel_tool_calls": False,
}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a JSON value."""
    items: Iterable[Any] = ()
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    return [path] * bool(path) + [
        place for key, item in items for place in places(item, (*path, key))
    ]


ODD = st.sampled_from(
    [None, True, 0, -1.5, "", "x", [], [[]], {}, {"x": 1}, {"type": "function"}]
)


@settings(
    deadline=None,
    max_examples=120,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.sampled_from(places(GOOD)), ODD, st.booleans())
def test_anything_odd_is_served_or_refused(
    site: Any, place: tuple[Any, ...], odd: object, is_name: bool
) -> None:
    """Any value in any place, or a name nobody knows, is an answer or a clear refusal."""
    body = json.loads(json.dumps(GOOD))
    inner = body
    for key in place[:-1]:
        inner = inner[key]
    if is_name and isinstance(inner, dict):
        inner["odd"] = odd
    else:
        inner[place[-1]] = odd
    response = site.post("/v1/chat/completions", **body)
    if response.status_code != 200:
        assert site.refused(response)["param"]


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_parameters_that_cannot_be_enforced_are_named(site: Any, choice: object) -> None:
    """The tool's own place is the parameter, not the schema made for the answer."""
    site.client.refusals["x"] = ConstraintRefused("no", field="json_schema", reason="type")
    bad = tool(parameters={"type": "object", "properties": {"a": {"type": "objekt"}}})
    tools = [tool("time"), bad] if choice == "required" else [bad, tool("time")]
    error = site.refused(site.chat("x", tools=tools, tool_choice=choice))
    place = 1 if choice == "required" else 0
    assert error["param"] == f"tools[{place}].function.parameters"
    assert error["message"].startswith("tool weather: ")


def test_a_refused_form_is_named_as_it_was_sent(site: Any) -> None:
    """The parameter is `response_format`, on both routes that have it."""
    site.client.refusals["x"] = ConstraintRefused("no", field="json_schema", reason="type")
    assert site.refused(site.chat("x", response_format=SHAPE))["param"] == "response_format"
    response = site.post("/v1/completions", prompt="x", response_format=SHAPE)
    assert site.refused(response)["param"] == "response_format"


# The parts


def test_references_lead_from_their_own_root() -> None:
    """Equal names and ids in two tools do not meet; a schema may refer to itself."""
    tree = {
        "$id": "same",
        "$defs": {"leaf": {"enum": [1]}},
        "type": "object",
        "properties": {
            "kids": {"type": "array", "items": {"$ref": "#"}},
            "leaf": {"$ref": "#/$defs/leaf"},
        },
        "additionalProperties": False,
    }
    other = {**tree, "$defs": {"leaf": {"enum": [2]}}}
    schema = call_schema([("one", tree), ("two", other)])

    def is_valid(name: str, arguments: object) -> bool:
        call = {"name": name, "arguments": arguments}
        return jsonschema.Draft202012Validator(schema).is_valid(call)

    assert is_valid("one", {"kids": [{"kids": []}, {"leaf": 1}]})
    assert is_valid("two", {"kids": [{"leaf": 2}]})
    for name, arguments in (
        ("one", {"leaf": 2}),
        ("two", {"leaf": 1}),
        ("two", {"kids": [{"leaf": 1}]}),
        ("one", {"kids": [{"x": 1}]}),
    ):
        assert not is_valid(name, arguments)


def test_a_reference_at_the_root_stands_beside_its_definitions() -> None:
    """Older drafts would see nothing but the reference."""
    schema = {"$ref": "#/definitions/a", "definitions": {"a": {}}, "type": "object"}
    assert rooted(schema) == {
        "definitions": {"a": {}},
        "type": "object",
        "allOf": [{"$ref": "#/definitions/a"}],
    }
    assert rooted(CITY) is CITY


def pieces(text: str, size: int) -> Iterable[str]:
    """The text in pieces."""
    return (text[start : start + size] for start in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_call_is_read_in_any_pieces(size: int) -> None:
    """Blanks between the parts do not matter, braces in texts neither."""
    answer = '{ "name" : "f",\n"arguments": {"a": "}\\\\", "b": [{}, "\\"}"]} }'
    reader = CallReader()
    deltas = [delta for piece in pieces(answer, size) for delta in reader.add(piece)]
    (call,) = message_of(deltas, is_text=False)["tool_calls"]
    expected = {"a": "}\\", "b": [{}, '"}']}
    assert json.loads(call["function"]["arguments"]) == expected
    assert call["function"]["arguments"].endswith("]}")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"name": 1e999', "[]", "null", "<tool_call>"])
def test_what_is_no_call_is_none(text: str) -> None:
    """Deep, broken and empty values are text."""
    assert read_calls(text, ["f"]) == []
