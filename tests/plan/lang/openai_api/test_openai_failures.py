"""Errors, streams that break, cancelling, timeouts and retries."""

from __future__ import annotations

import threading
import time

import openai
import pytest
from support.openai_programs import asking, chunk, run

import mmserve as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    Busy,
    CallTimeout,
    ContextTooLong,
    NotFound,
)


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (400, {}, BadRequest),
        (400, {"code": "context_length_exceeded"}, ContextTooLong),
        (400, {"code": "context_too_long"}, ContextTooLong),
        (401, {}, BackendFailed),
        (403, {}, BackendFailed),
        (404, {}, NotFound),
        (429, {}, Busy),
        (503, {}, Busy),
        (500, {}, BackendFailed),
    ],
)
def test_a_refusal_is_raised_at_reading(script, scripted, status, error, expected):
    """Typed, with the API's message and status."""
    script.rule = lambda path, body: (status, {"error": {"message": "why", **error}})
    script.retry_after = "2"
    state = run(scripted, asking())
    with pytest.raises(expected, match="why") as caught:
        state["x"]

    assert type(caught.value) is expected
    assert caught.value.fields["status"] == status
    if expected is Busy:
        assert caught.value.fields["retry_after_s"] == 2


def test_an_error_of_the_server_is_raised_by_every_reader(chat, echo):
    """At reading of the name, of later names, of text, and by iterators."""
    echo.refusals["BOOM"] = BackendFailed("boom", status=None)

    def body(s):
        asking("BOOM")(s)
        s += sgl.user("more") + sgl.assistant(sgl.gen("y"))

    state = run(chat, body)
    for read in (
        lambda: state["x"],
        lambda: state["y"],
        state.text,
        lambda: list(state.text_iter("x")),
    ):
        with pytest.raises(BackendFailed, match="boom"):
            read()
    assert len(echo.requests) == 1


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([chunk("a")], "early"),
        ([chunk("a"), "[DONE]"], "early"),
        (["no json"], "failed"),
        ([chunk("a"), {"error": {"message": "why"}}], "why"),
        ([chunk("a", "content_filter"), "[DONE]"], "content filter"),
        ([chunk("a", "tool_calls"), "[DONE]"], "tool_calls"),
        (
            [{"choices": [{"index": 0, "delta": {"refusal": "no"}, "finish_reason": "stop"}]}],
            "no",
        ),
        ([chunk("a", "stop", 4), "[DONE]"], "failed"),
    ],
)
def test_a_stream_that_is_no_answer_is_the_backends_failure(script, scripted, events, message):
    """Broken off, malformed, filtered, refused by the model, or for an index not asked for."""
    script.rule = lambda path, body: events
    with pytest.raises(BackendFailed, match=message):
        run(scripted, asking())["x"]


def test_a_cancelled_call_closes_its_stream(script, scripted):
    """The reader is told at once; the server sees its client leave."""
    script.rule = lambda path, body: [chunk("a"), threading.Event(), chunk("b", "stop")]
    state = run(scripted, asking(), stream=True)
    next(state.text_iter("x"))
    state.cancel()
    with pytest.raises(Aborted):
        state["x"]

    assert script.has_lost_client.wait(5)


def test_a_call_without_a_response_is_closed_when_it_has_one(script, scripted):
    """The reader is told at once all the same."""
    is_asked, answer = threading.Event(), threading.Event()

    def rule(path, body):
        is_asked.set()
        assert answer.wait(5)
        return [threading.Event(), chunk("a", "stop"), "[DONE]"]

    script.rule = rule
    state = run(scripted, asking(), stream=True)
    assert is_asked.wait(5)
    state.cancel()
    with pytest.raises(Aborted):
        state["x"]
    assert not script.has_lost_client.is_set()
    answer.set()

    assert script.has_lost_client.wait(5)


def test_an_aborted_call_ends_on_a_server_of_ours(chat, echo):
    """The engine behind it is told."""
    echo.pace_s = 0.02
    state = run(chat, asking("a long text that takes a while"), stream=True)
    next(state.text_iter("x"))
    state.cancel()
    deadline = time.monotonic() + 5
    while echo.tickets[0].is_running and time.monotonic() < deadline:
        time.sleep(0.005)

    assert echo.tickets[0].ends == {0: "abort"}


def test_a_silent_server_is_bounded_by_the_timeout(script, scripted):
    """timeout_s counts from submission; the stream is closed."""
    script.rule = lambda path, body: [chunk("a"), threading.Event()]
    with pytest.raises(CallTimeout):
        run(scripted, asking(), timeout_s=0.2)["x"]

    assert script.has_lost_client.wait(5)


def test_a_call_is_tried_again_but_not_for_ever(script):
    """Errors that may pass; as often as the client's max_retries says."""
    replies = [(500, {}), (429, {}), [chunk("a", "stop"), "[DONE]"], (500, {}), (500, {})]
    script.rule = lambda path, body: replies[len(script.bodies) - 1]
    script.retry_after = "0"
    with sgl.OpenAI("m", api_key="k", base_url=script.url, max_retries=2) as backend:
        assert run(backend, asking())["x"] == "a"
    with (
        sgl.OpenAI("m", api_key="k", base_url=script.url, max_retries=1) as backend,
        pytest.raises(BackendFailed),
    ):
        run(backend, asking())["x"]

    assert len(script.bodies) == 5


def test_a_call_that_is_over_is_not_tried_again(script):
    """The timeout falls into the pause before the second try."""
    script.rule = lambda path, body: (500, {})
    script.retry_after = "30"
    with sgl.OpenAI("m", api_key="k", base_url=script.url, max_retries=2) as backend:
        with pytest.raises(CallTimeout):
            run(backend, asking(), timeout_s=0.2)["x"]
        threads = [t for t in threading.enumerate() if t.name == "mmserve-api"]
        for thread in threads:
            thread.join(5)

    assert not any(thread.is_alive() for thread in threads)
    assert len(script.bodies) == 1


def test_a_server_that_is_not_there_fails_with_a_hint():
    """The message says that it is the connection."""
    with (
        sgl.OpenAI("m", api_key="k", base_url="http://127.0.0.1:9", max_retries=0) as backend,
        pytest.raises(BackendFailed, match="connection"),
    ):
        run(backend, asking())["x"]


def test_a_client_that_times_out_is_a_timeout(script):
    """The package's own limit on silence."""
    go_on = threading.Event()
    script.rule = lambda path, body: [chunk("a"), go_on]
    settings = {"api_key": "k", "base_url": script.url, "max_retries": 0}
    with (
        sgl.OpenAI("m", timeout=openai.Timeout(5, read=0.1), **settings) as backend,
        pytest.raises(CallTimeout),
    ):
        run(backend, asking())["x"]
