"""`/v1/messages` as a stream: events in order, calls in pieces, errors inside, clients gone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from plan.server.test_anthropic import CALL, PATH, WEATHER, ask
from support.departures import leaving, wait_until
from support.site import Site

from mmserve.core import Finish, RunnerFailed
from mmserve.server.anthropic.answers import BlockWriter, content_of, stop_fields
from mmserve.server.chat.tools_calls import TextReader


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events, each checked for a name that is its type."""
    assert response.headers["content-type"].startswith("text/event-stream")
    pieces = response.text.split("\n\n")
    assert pieces.pop() == ""
    events = []
    for piece in pieces:
        name, data = piece.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def stream(site: Site, **fields: Any) -> list[dict[str, Any]]:
    """All events of one answer."""
    return events_of(ask(site, stream=True, **fields))


def test_text_is_one_block(site: Site) -> None:
    """Events come in Anthropic's order, and their texts join to the whole answer."""
    events = stream(site)
    kinds = list(dict.fromkeys(event["type"] for event in events))
    assert kinds == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    texts = [event["delta"]["text"] for event in events if event["type"] == kinds[2]]
    assert "".join(texts) == "hello"
    assert len(texts) == 5


def test_the_first_and_the_last_event(site: Site) -> None:
    """Usage of the prompt comes first, the reason to stop and all usage last."""
    first, *_, last, _ = stream(site, stop_sequences=["lo"])
    message = first["message"]
    assert (message["content"], message["stop_reason"], message["role"]) == (
        [],
        None,
        "assistant",
    )
    assert message["usage"]["cache_read_input_tokens"] == 1
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "lo"}
    whole = ask(site, stop_sequences=["lo"]).json()
    assert last["usage"] == whole["usage"]


def test_calls_come_in_pieces(site: Site) -> None:
    """A block begins with name and empty input, the pieces of its input are JSON together."""
    site.client.answers["hello"] = CALL
    fields = {"tools": [WEATHER], "tool_choice": {"type": "any"}, "max_tokens": 400}
    events = stream(site, **fields)
    (begin,) = [event for event in events if event["type"] == "content_block_start"]
    block = begin["content_block"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", {})
    pieces = [
        event["delta"]["partial_json"]
        for event in events
        if event["type"] == "content_block_delta"
    ]
    assert json.loads("".join(pieces)) == {"city": "Oslo"}
    assert len(pieces) > 5
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_blocks_are_numbered() -> None:
    """Text and two calls are three blocks, each begun and ended once."""
    writer = BlockWriter()
    calls = [
        {"tool_calls": [{"index": k, "id": f"call_{k}", "function": function}]}
        for k, function in enumerate([{"name": "a", "arguments": ""}] * 2)
    ]
    more = {"tool_calls": [{"index": 1, "function": {"arguments": '{"x": 1}'}}]}
    events = [*writer.take([{"content": "hi"}, *calls, more]), *writer.end()]
    starts = [event["index"] for event in events if event["type"] == "content_block_start"]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2]
    assert [block.get("input") for block in content_of(events)] == [None, {}, {"x": 1}]


def test_extras_stand_in_the_end(site: Site) -> None:
    """Timing is known then; ids of the prompt stand at the beginning."""
    events = stream(site, return_timing=True, return_token_ids=True)
    assert events[-2]["mmserve"]["timing_ms"]["total"] == 2.5
    assert bytes(events[-2]["token_ids"]) == b"hello"
    assert bytes(events[0]["message"]["prompt_token_ids"][1:]) == b"[user]hello[assistant]"


def test_a_failure_on_the_way_is_an_event(site: Site) -> None:
    """After some text an error event ends the stream, in Anthropic's form."""
    site.client.failures["hello"] = (2, RunnerFailed("secret"))
    events = stream(site)
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["type"] == "api_error"
    assert "secret" not in str(events)
    assert events[0]["type"] == "message_start"


def test_a_failure_before_the_first_news_has_its_status(site: Site) -> None:
    """No byte of a stream was sent."""
    site.client.failures["hello"] = (0, RunnerFailed("secret"))
    response = ask(site, stream=True)
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"


@pytest.mark.parametrize("is_stream", [True, False])
def test_who_leaves_is_cancelled(site: Site, is_stream: bool) -> None:
    """The ticket of an answer that nobody reads is aborted."""
    site.client.pace_s = 0.02
    body = {
        "messages": [{"role": "user", "content": "x" * 3000}],
        "max_tokens": 3000,
        "stream": is_stream,
    }
    with leaving(site.url, PATH, body) as connection:
        wait_until(lambda: bool(site.client.tickets))
        if is_stream:
            assert connection.getresponse().read(1)
    (ticket,) = site.client.tickets
    wait_until(lambda: not ticket.is_running)
    assert ticket.ends == {0: "abort"}


@pytest.mark.parametrize(
    ("finish", "has_calls", "reason"),
    [
        (Finish("stop", 257), False, "end_turn"),
        (Finish("stop", "END"), False, "stop_sequence"),
        (Finish("length"), True, "max_tokens"),
        (Finish("abort"), False, "pause_turn"),
        (Finish("stop", 257), True, "tool_use"),
    ],
)
def test_reasons_to_stop(finish: Finish, has_calls: bool, reason: str) -> None:
    """Each end of the engine's has a word of Anthropic's."""
    told = stop_fields(finish, TextReader(), has_calls=has_calls)
    matched = finish.matched if reason == "stop_sequence" else None
    assert told == {"stop_reason": reason, "stop_sequence": matched}
