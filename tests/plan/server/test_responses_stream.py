"""The events of `/v1/responses`: which, in which order, and how a stream ends."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from mmserve.core import RunnerFailed

LOGPROBS = ["message.output_text.logprobs"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "name": name, "parameters": CITY} for name in ("weather", "time")]


def stream(site: Any, given: object, **fields: Any) -> list[dict[str, Any]]:
    """The events of an answer, each checked for its name and number."""
    response = site.post("/v1/responses", input=given, stream=True, **fields)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *frames, end = response.text.split("\n\n")
    assert end == ""
    events = []
    for number, frame in enumerate(frames):
        name, value = frame.split("\n")
        events.append(json.loads(value.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        assert events[-1].pop("sequence_number") == number
    return events


def kinds(events: list[dict[str, Any]]) -> list[str]:
    """The events' types, without what they have in common."""
    return [event["type"].removeprefix("response.") for event in events]


MESSAGE = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]


def test_a_text_is_told_event_by_event(site) -> None:
    """The public order, each with its place, and whole characters only."""
    events = stream(site, "hé")
    created, progress, item, part, first, second, text, content, done, completed = events
    message_id = item["item"]["id"]
    place = {"item_id": message_id, "output_index": 0, "content_index": 0}
    whole = {"type": "output_text", "text": "hé", "annotations": [], "logprobs": []}

    assert kinds(events) == MESSAGE
    assert created["response"] == progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])
    assert created["response"]["usage"] is None
    assert item["item"] == {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    assert item["output_index"] == done["output_index"] == 0
    assert part == {"type": part["type"], **place, "part": {**whole, "text": ""}}
    assert [first["delta"], second["delta"]] == ["h", "é"]
    assert first == {"type": first["type"], **place, "delta": "h", "logprobs": []}
    assert text == {"type": text["type"], **place, "text": "hé", "logprobs": []}
    assert content == {"type": content["type"], **place, "part": whole}
    assert done["item"] == {**item["item"], "status": "completed", "content": [whole]}
    assert completed["response"]["output"] == [done["item"]]
    assert completed["response"]["usage"]["output_tokens"] == 3
    assert completed["response"]["id"] == created["response"]["id"]


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    """A response without what differs from one to the next."""
    drawn = dict.fromkeys(("id", "created_at", "completed_at"))
    output = [{**item, "id": None, "call_id": None} for item in response["output"]]
    return {**response, **drawn, "output": output}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_output_tokens": 2},
        {"include": LOGPROBS, "top_logprobs": 1},
        {"return_token_ids": True, "store": False},
        {"stop": "l"},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "weather"}},
    ],
)
def test_a_stream_ends_with_the_whole_answer(site, fields) -> None:
    """The last event's response is the one that a request without `stream` gets."""
    whole = site.post("/v1/responses", input="hello", **fields).json()
    last = stream(site, "hello", **fields)[-1]

    assert last["type"] == f"response.{whole['status']}"
    assert without_ids(last["response"]) == without_ids(whole)


def test_no_text_has_all_its_events(site) -> None:
    """But no delta."""
    events = stream(site, "", max_output_tokens=9)
    assert kinds(events) == [kind for kind in MESSAGE if kind != "output_text.delta"]


def test_a_cut_answer_ends_incomplete(site) -> None:
    """With the reason, and the item's state."""
    events = stream(site, "hello", max_output_tokens=2)

    assert kinds(events)[-3:] == ["content_part.done", "output_item.done", "incomplete"]
    assert events[-2]["item"]["status"] == "incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}


def test_deltas_have_their_log_probabilities(site) -> None:
    """Those of a character's bytes come with it, those of no text with the last delta."""
    events = stream(site, "aé", include=LOGPROBS)
    deltas = [event for event in events if event["type"].endswith("text.delta")]
    told = [[entry["bytes"] for entry in delta["logprobs"]] for delta in deltas]
    whole = next(event for event in events if event["type"].endswith("text.done"))

    assert [delta["delta"] for delta in deltas] == ["a", "é"]
    assert told == [[[97]], [[195], [169]]]
    assert [entry["bytes"] for entry in whole["logprobs"]] == [[97], [195], [169]]
    (_, _, _, _, empty, *_) = stream(site, "", include=LOGPROBS)
    assert (empty["delta"], len(empty["logprobs"])) == ("", 1)


CALL = [
    "created",
    "in_progress",
    "output_item.added",
    "function_call_arguments.delta",
    "function_call_arguments.done",
    "output_item.done",
    "completed",
]


def shortened(events: list[dict[str, Any]]) -> list[str]:
    """The events' types, deltas that follow each other as one."""
    found = kinds(events)
    return [kind for k, kind in enumerate(found) if found[k - 1 : k] != [kind]]


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ('{"city": "Oslo"}', {"type": "function", "name": "weather"}),
        ('{"name": "weather", "arguments": {"city": "Oslo"}}', "required"),
        ('{"name": "weather", "arguments": {"city": "Oslo"}}', "auto"),
    ],
)
def test_a_call_is_told_event_by_event(site, answer, choice) -> None:
    """Its name first, its arguments piece by piece, then both."""
    events = stream(site, answer, tools=TOOLS, tool_choice=choice)
    added = events[2]["item"]
    deltas = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    done = events[-3]
    place = {"item_id": added["id"], "output_index": 0}

    assert shortened(events) == CALL
    assert added["id"].startswith("fc_")
    assert added["call_id"].startswith("call_")
    assert (added["name"], added["arguments"], added["status"]) == (
        "weather",
        "",
        "in_progress",
    )
    assert "".join(deltas) == '{"city": "Oslo"}'
    assert {name: events[3][name] for name in place} == place
    assert done == {
        "type": "response.function_call_arguments.done",
        **place,
        "name": "weather",
        "arguments": '{"city": "Oslo"}',
    }
    whole = {**added, "status": "completed", "arguments": '{"city": "Oslo"}'}
    assert events[-2]["item"] == whole
    assert events[-1]["response"]["output"] == [whole]


def test_several_calls_are_told_one_after_the_other(site) -> None:
    """Each with its place in the output."""
    calls = [{"name": name, "arguments": {"city": "Rome"}} for name in ("weather", "time")]
    events = stream(site, json.dumps(calls), tools=TOOLS)
    places = [event["output_index"] for event in events if "output_index" in event]

    assert shortened(events) == [*CALL[:6], *CALL[2:]]
    assert places == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [item["name"] for item in events[-1]["response"]["output"]] == ["weather", "time"]


def test_a_call_that_is_cut_says_so(site) -> None:
    """What there is of its arguments; without its name there is no item."""
    answer = '{"name": "weather", "arguments": {"city": "Oslo"}}'
    asked = {"tools": TOOLS, "tool_choice": "required"}
    events = stream(site, answer, max_output_tokens=40, **asked)
    (item,) = events[-1]["response"]["output"]

    assert events[-1]["type"] == "response.incomplete"
    assert (item["status"], item["arguments"]) == ("incomplete", '{"city"')
    assert kinds(stream(site, answer, max_output_tokens=9, **asked)) == [
        *CALL[:2],
        "incomplete",
    ]


def test_a_failure_on_the_way_is_an_event(site) -> None:
    """The error as every route tells one, then the response that failed and is not kept."""
    site.client.failures["hello"] = (2, RunnerFailed("secret words", step=3))
    events = stream(site, "hello")
    error, failed = events[-2:]

    assert kinds(events)[-4:] == ["output_text.delta", "output_text.delta", "error", "failed"]
    assert set(error) == {"type", "code", "message", "param", "error"}
    assert error["error"] == {
        "code": error["code"],
        "message": error["message"],
        "param": None,
        "type": "server_error",
    }
    response = failed["response"]
    assert (response["status"], response["store"]) == ("failed", False)
    assert response["error"] == {"code": "server_error", "message": error["message"]}
    assert "secret" not in str(events)
    assert site.http.get(f"/v1/responses/{response['id']}").status_code == 404


def test_a_failure_before_any_news_has_its_status(site) -> None:
    """No stream is begun."""
    site.client.failures["hello"] = (0, RunnerFailed("secret words", step=3))
    response = site.post("/v1/responses", input="hello", stream=True)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"


def wait_until_idle(site: Any) -> None:
    """Come back when no ticket runs any more."""
    deadline = time.monotonic() + 20
    while any(ticket.is_running for ticket in site.client.tickets):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_leaves_ends_its_answer(site) -> None:
    """The engine is told, and nothing is kept."""
    site.client.pace_s = 0.01
    kept = site.http.get("/server_info").json()["counters"]["responses"]
    body = {"input": "x" * 2000, "stream": True, "max_output_tokens": 2000}
    with site.http.stream("POST", "/v1/responses", json=body) as response:
        next(response.iter_raw())
    wait_until_idle(site)

    assert site.client.tickets[-1].ends == {0: "abort"}
    assert site.http.get("/server_info").json()["counters"]["responses"] == kept


@pytest.mark.parametrize("known_as", ["the header", "the response"])
def test_an_answer_can_be_aborted(site, known_as) -> None:
    """By the id that the client gave, or by the response's own; it ends incomplete."""
    site.client.pace_s = 0.01
    body = {"input": "x" * 2000, "stream": True, "max_output_tokens": 2000, "rid": "mine"}
    with site.http.stream("POST", "/v1/responses", json=body) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: response.created"
        created = json.loads(next(lines).removeprefix("data: "))
        own = created["response"]["id"]
        rid = "mine" if known_as == "the header" else own
        site.post("/abort_request", rid=rid)
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")][-1]

    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "abort"}
