"""Tools of `/v1/responses`: how they are written, and what is told of calls."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmserve.core import ConstraintRefused

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ANSWER = '{"name": "weather", "arguments": {"city": "Oslo"}}'


def tool(name: str = "weather", **fields: Any) -> dict[str, Any]:
    """A function tool."""
    return {"type": "function", "name": name, "parameters": CITY, **fields}


NAMED = {"type": "function", "name": "weather"}
TOOLS = [tool(strict=True), tool("time", description="What time is it?", parameters=None)]


def ask(site: Any, given: object = ANSWER, **fields: Any) -> Any:
    """The response to an input."""
    response = site.post("/v1/responses", **{"input": given, "tools": TOOLS, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def refused(site: Any, **fields: Any) -> Any:
    """The refusal of a request."""
    return site.refused(site.post("/v1/responses", **{"input": "x", "tools": TOOLS, **fields}))


def schema_of(site: Any) -> Any:
    """The schema of the last request's answer."""
    constraint = site.client.requests[-1].sampling.constraint
    assert constraint.kind == "json_schema"
    return json.loads(constraint.value)


def test_a_call_is_an_item(site) -> None:
    """With ids of its own, its name, and its arguments as text."""
    told = ask(site)
    (item,) = told["output"]

    assert item.pop("id").startswith("fc_")
    assert item.pop("call_id").startswith("call_")
    assert item == {
        "type": "function_call",
        "status": "completed",
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    }
    assert told["status"] == "completed"


def test_tools_are_shown_and_repeated(site) -> None:
    """The model sees them as chat's, the client gets them as it sent them."""
    told = ask(site, tool_choice=NAMED, parallel_tool_calls=False)
    shown = [json.loads(words)["function"] for words in site.client.requests[-1].tools]

    assert [function["name"] for function in shown] == ["weather", "time"]
    assert shown[1]["description"] == "What time is it?"
    assert told["tools"] == [
        {**TOOLS[0], "description": None},
        {**TOOLS[1], "strict": None},
    ]
    assert (told["tool_choice"], told["parallel_tool_calls"]) == (NAMED, False)


def test_a_named_function_asks_for_its_arguments(site) -> None:
    """The answer matches its parameters and is that call."""
    (item,) = ask(site, '{"city": "Oslo"}', tool_choice=NAMED)["output"]
    assert (item["name"], item["arguments"]) == ("weather", '{"city": "Oslo"}')
    assert schema_of(site) == CITY


def test_required_asks_for_any_call(site) -> None:
    """Of one of the tools."""
    (item,) = ask(site, tool_choice="required")["output"]
    assert item["name"] == "weather"
    names = [one["properties"]["name"]["const"] for one in schema_of(site)["anyOf"]]
    assert names == ["weather", "time"]


def allowed(mode: str, *names: str) -> dict[str, Any]:
    """A choice among some of the tools."""
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


def test_some_tools_can_be_allowed(site) -> None:
    """The model sees all of them; those alone are required, or read as calls."""
    ask(site, '{"name": "time", "arguments": {}}', tool_choice=allowed("required", "time"))
    assert schema_of(site)["properties"]["name"] == {"const": "time"}
    assert len(site.client.requests[-1].tools) == 2
    (item,) = ask(site, tool_choice=allowed("auto", "time"))["output"]
    assert item["type"] == "message"
    (item,) = ask(site, tool_choice=allowed("auto", "time", "weather"))["output"]
    assert item["type"] == "function_call"


def test_none_shows_no_tool(site) -> None:
    """And the answer is text whatever it looks like."""
    (item,) = ask(site, tool_choice="none")["output"]
    assert (item["type"], site.client.requests[-1].tools) == ("message", ())


def test_one_call_where_several_are_not_allowed(site) -> None:
    """The first."""
    calls = [{"name": name, "arguments": {}} for name in ("time", "weather")]
    answer = json.dumps(calls)
    assert len(ask(site, answer)["output"]) == 2
    (item,) = ask(site, answer, parallel_tool_calls=False)["output"]
    assert item["name"] == "time"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "run its calls yourself"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "mcp"),
        ({"tools": [{"name": "f"}]}, "tools[0].type", "missing"),
        (
            {"tools": [{"type": "function", "function": {"name": "f"}}]},
            "tools[0].function",
            "beside type",
        ),
        ({"tools": [tool("a b")]}, "tools[0].name", "1 to 64"),
        ({"tools": [tool(parameters=5)]}, "tools[0].parameters", "a JSON schema"),
        ({"tools": [tool(), tool()]}, "tools[1].name", "earlier"),
        ({"tools": [tool(defer_loading=True)]}, "tools[0].defer_loading", "false"),
        ({"tools": [tool(output_schema={})]}, "tools[0].output_schema", "null"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "sometimes"}, "tool_choice", "auto"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name", "none of"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "functions"),
        ({"tool_choice": allowed("auto")}, "tool_choice.tools", "empty"),
        ({"tool_choice": allowed("none", "time")}, "tool_choice.mode", "required"),
        ({"tool_choice": allowed("auto", "x")}, "tool_choice.name", "none of"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "time"}}},
            "tool_choice.function",
            "beside type",
        ),
        ({"tool_choice": "required", "regex": "a"}, "regex", "tool_choice"),
    ],
)
def test_odd_tools_are_refused_by_name(site, fields, param, words) -> None:
    """With the way out, where there is one."""
    error = refused(site, **fields)
    assert error["param"] == param
    assert words in error["message"]


def test_a_bad_schema_is_told_by_its_tool(site) -> None:
    """The field is that of the flat form."""
    site.client.refusals["x"] = ConstraintRefused("odd", position=1)
    tools = [tool(), tool("other", parameters={"properties": 5})]
    error = refused(site, tools=tools, tool_choice="required")
    assert error["param"] == "tools[1].parameters"


def test_a_call_goes_on_with_its_result(site) -> None:
    """The response's items and the result are the next input."""
    first = ask(site, ANSWER)
    (call,) = first["output"]
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": "rain",
    }
    sent = ask(site, [{"role": "user", "content": "how?"}, call, result])
    turns = site.client.requests[-1].parts
    kept = ask(site, [result], previous_response_id=first["id"])

    assert [turn.role for turn in turns[:3]] == ["user", "assistant", "tool"]
    assert turns[1].tool_calls[0].call_id == turns[2].tool_call_id == call["call_id"]
    assert site.client.requests[-1].parts[1:3] == turns[1:3]
    assert sent["output"][0]["type"] == kept["output"][0]["type"] == "message"
