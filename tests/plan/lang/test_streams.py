"""Streams: whole characters as they come, of a variable or all text."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import UnknownVariable


@sgl.function
def program(s):
    """Text, an answer, text, an answer."""
    s += "one " + sgl.gen("a", max_tokens=4)
    s += " two " + sgl.gen("b", max_tokens=4)


def test_a_variable_streams_in_pieces_that_join_to_its_value(slow_client):
    """More than one piece, and nothing but the variable's text."""
    state = program.run(backend=slow_client, stream=True)
    pieces = list(state.text_iter("b"))

    assert len(pieces) > 1
    assert "".join(pieces) == state["b"]


def test_all_text_streams_in_order(slow_client):
    """Appended and generated text alike."""
    state = program.run(backend=slow_client, stream=True)

    assert "".join(state.text_iter()) == state.text()


def test_a_streaming_run_returns_at_once(slow_client):
    """The body runs in a thread of its own."""
    has_returned = threading.Event()

    def body(s):
        s += "a"
        return has_returned.wait(20)

    state = sgl.function(body).run(backend=slow_client, stream=True)
    has_returned.set()

    assert state.ret_value is True


def test_a_name_that_is_not_appended_yet_is_waited_for(client):
    """While the body runs elsewhere, a name may still appear."""

    def body(s):
        time.sleep(0.1)
        s += "a" + sgl.gen("late", max_tokens=1)

    state = sgl.function(body).run(backend=client, stream=True)

    assert len(state["late"]) == 1


def test_without_stream_the_text_comes_in_one_piece(slow_client):
    """Of a variable and of all text."""
    state = program.run(backend=slow_client)

    assert list(state.text_iter("a")) == [state["a"]]
    assert list(state.text_iter()) == [state.text()]


def test_an_unknown_name_raises_when_the_body_has_ended(slow_client):
    """Streaming or not."""
    for stream in (True, False):
        state = program.run(backend=slow_client, stream=stream)
        with pytest.raises(UnknownVariable):
            list(state.text_iter("c"))


def test_the_asynchronous_stream_leaves_the_loop_free(slow_client):
    """A clock ticks between the pieces, which join to the value."""
    ticks = []

    async def clock():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.01)

    async def main():
        ticking = asyncio.create_task(clock())
        state = program.run(backend=slow_client, stream=True)
        pieces = [piece async for piece in state.text_async_iter("a")]
        ticking.cancel()
        return state, pieces

    state, pieces = asyncio.run(main())

    assert "".join(pieces) == state["a"]
    assert len(pieces) > 1
    assert len(ticks) > 5


def test_the_asynchronous_stream_gives_meta_info_if_asked(slow_client):
    """Counts grow with the pieces."""

    async def main():
        state = program.run(backend=slow_client, stream=True)
        return [
            meta["completion_tokens"]
            async for _, meta in state.text_async_iter("a", return_meta_data=True)
        ]

    counts = asyncio.run(main())

    assert counts == sorted(counts)
    assert counts[-1] == 4


def test_a_scope_streams_too(slow_client):
    """Its pieces are the text inside."""

    def body(s):
        s += "a"
        with s.var_scope("v"):
            s += "b" + sgl.gen("x", max_tokens=3)

    state = sgl.function(body).run(backend=slow_client, stream=True)

    assert "".join(state.text_iter("v")) == state["v"] == "b" + state["x"]


def test_a_set_variable_is_one_piece(slow_client):
    """`s[name] = value` can be iterated like an answer."""

    def body(s):
        s["v"] = "value"

    state = sgl.function(body).run(backend=slow_client, stream=True)

    assert list(state.text_iter("v")) == ["value"]


def test_partial_text_neither_waits_nor_raises(slow_client):
    """It is what there is by now."""
    state = program.run(backend=slow_client, stream=True)
    next(state.text_iter("a"))

    assert state.partial_text().startswith("one ")
