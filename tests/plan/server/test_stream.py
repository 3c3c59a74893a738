"""Streams of the chat and completions routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.echo_client import EchoClient
from support.site import events_of

from mmserve.core import RunnerFailed
from mmserve.server.calls import Calls, OpenCall
from mmserve.server.events import EventStream

ROUTES = ["/v1/chat/completions", "/v1/completions"]


def ask(site, route: str, text: str, **fields: object):
    """The same question on either route, streamed."""
    asked = {"prompt": text, "max_tokens": 100}
    if "chat" in route:
        asked = {"messages": [{"role": "user", "content": text}]}
    return site.post(route, **{**asked, "stream": True, **fields})


def pieces(events: list, index: int = 0) -> list[str]:
    """What each chunk adds to a choice's text."""
    choices = [
        event["choices"][0] for event in events if event != "[DONE]" and event["choices"]
    ]
    return [
        choice["delta"].get("content", "") if "delta" in choice else choice["text"]
        for choice in choices
        if choice["index"] == index
    ]


def test_a_chat_stream_has_openais_form(site) -> None:
    """Role first, then text, then the finish, then the end; one id throughout."""
    response = ask(site, ROUTES[0], "hé")
    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response)
    assert events.pop() == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:-1] == [{"content": "h"}, {"content": "é"}]
    assert deltas[-1] == {}
    finishes = [event["choices"][0]["finish_reason"] for event in events]
    assert finishes == [None, None, None, "stop"]
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}])
def test_usage_comes_only_when_asked(site, route: str, options: object) -> None:
    """Absent, empty and false options give no usage in any chunk."""
    events = events_of(ask(site, route, "ab", stream_options=options))
    assert all("usage" not in event for event in events[:-1])
    assert all(event["choices"] for event in events[:-1])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", [{}, {"stop": "c"}, {"max_tokens": 1}])
def test_usage_is_one_last_chunk(site, route: str, how: dict) -> None:
    """It has no choices, comes after the finish, and equals the whole answer's."""
    wanted = {"stream_options": {"include_usage": True}, **how}
    events = events_of(ask(site, route, "abcd", **wanted))
    assert events.pop() == "[DONE]"
    last = events.pop()
    assert last["choices"] == []
    assert events[-1]["choices"][0]["finish_reason"] is not None
    assert all(event["usage"] is None for event in events)
    whole = ask(site, route, "abcd", stream=False, **how).json()
    assert last["usage"] == whole["usage"]


@pytest.mark.parametrize("route", ROUTES)
def test_usage_is_in_every_chunk_when_asked(site, route: str) -> None:
    """It only grows, and the last is the whole answer's."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = events_of(ask(site, route, "abcd", stream_options=options))[:-1]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert len({event["usage"]["prompt_tokens"] for event in events}) == 1
    assert events[-1]["usage"] == ask(site, route, "abcd", stream=False).json()["usage"]


@pytest.mark.parametrize("route", ROUTES)
def test_streamed_text_is_the_whole_text(site, route: str) -> None:
    """Chunks join to the text of the whole answer, in whole characters."""
    text = "日本語 e\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467"
    found = pieces(events_of(ask(site, route, text)))
    assert "".join(found) == text
    assert not any("\ufffd" in piece for piece in found)


def test_samples_are_told_apart(site) -> None:
    """Chunks of three samples interleave; each joins to its own text."""
    events = events_of(ask(site, ROUTES[0], "abc", n=3))
    assert [("".join(pieces(events, index))) for index in range(3)] == ["abc"] * 3


@pytest.mark.parametrize("route", ROUTES)
def test_a_failure_on_the_way_is_told(site, route: str) -> None:
    """An error object is the last event; no finish is made up."""
    site.client.failures["abcd"] = (2, RunnerFailed("step 3 failed"))
    events = events_of(ask(site, route, "abcd"))
    assert events[-1]["error"]["code"] == "runner_failed"
    assert "".join(pieces(events[:-1])) == "ab"
    assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])


def test_an_unforeseen_failure_is_told_without_its_words(site) -> None:
    """What is not ours is an internal error."""
    site.client.failures["abcd"] = (2, ZeroDivisionError("secret"))
    events = events_of(ask(site, ROUTES[0], "abcd"))
    assert events[-1]["error"]["code"] == "internal_error"
    assert "secret" not in str(events)


def test_reports_are_streamed(site) -> None:
    """Ids and log-probabilities of the chunks join to those of the whole answer."""
    asked = {"logprobs": True, "top_logprobs": 1, "return_token_ids": True}
    whole = site.chat("hé!", **asked).json()
    events = events_of(site.chat("hé!", stream=True, **asked))[:-1]
    choices = [event["choices"][0] for event in events]
    scores = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert scores == whole["choices"][0]["logprobs"]["content"]
    ids = [token_id for choice in choices for token_id in choice.get("token_ids", [])]
    assert ids == whole["choices"][0]["token_ids"]
    assert events[0]["prompt_token_ids"] == whole["prompt_token_ids"]


def test_timing_is_in_the_last_chunk(site) -> None:
    """With usage or without, the last value before the end has it, and no other."""
    for options in (None, {"include_usage": True}):
        events = events_of(
            ask(site, ROUTES[0], "ab", return_timing=True, stream_options=options)
        )
        has_timing = ["mmserve" in event for event in events[:-1]]
        assert has_timing == [False] * (len(has_timing) - 1) + [True]


def test_a_stream_looks_up_between_its_events() -> None:
    """However many are there at once: else it would write on to a connection that is gone."""
    unseen: list[int] = []

    async def send(_message: dict[str, Any]) -> None:
        unseen.append(0)
        assert len(unseen) <= 2
        asyncio.get_running_loop().call_soon(unseen.clear)

    async def receive() -> dict[str, Any]:
        return await asyncio.get_running_loop().create_future()

    async def events() -> AsyncIterator[str]:
        for _ in range(20):
            yield "data: 1\n\n"

    stream = EventStream(events(), OpenCall(Calls(EchoClient()), [], 1))
    asyncio.run(stream({}, receive, send))
