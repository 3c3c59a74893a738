"""Programs that lean on what no single part owns: shared pictures, engines, threads."""

from __future__ import annotations

import asyncio
import io

import pytest

import mmserve as sgl
from mmserve.core import Aborted, UnsupportedByBackend
from mmserve.lang import ClientBackend
from mmserve.lang.backends.abilities import Abilities
from mmserve.testing.fake_client import FakeClient


@sgl.function
def ask(s, question):
    """One turn each."""
    s += sgl.user(question) + sgl.assistant(sgl.gen("a"))


class Poor(ClientBackend):
    """A backend that takes what every backend takes."""

    abilities = Abilities()


@pytest.mark.parametrize("style", [{}, {"generator_style": True}, {"as_completed": True}])
def test_a_batch_with_values_that_cannot_be_served_is_refused_at_once(client, style):
    """It raises as a run does, before a row begins."""
    with pytest.raises(UnsupportedByBackend, match="top_k"):
        ask.run_batch([("a",), ("b",)], top_k=4, backend=Poor(client), **style)
    assert client.requests == []


def test_a_row_that_cannot_begin_ends_the_batch(client):
    """A fault outside all rows is raised where their states are read; nobody waits on."""

    class Moody(ClientBackend):
        num_asked = 0

        @property
        def abilities(self):
            Moody.num_asked += 1
            if Moody.num_asked > 4:
                raise OSError("gone")
            return super().abilities

    with pytest.raises(OSError, match="gone"):
        ask.run_batch([(str(k),) for k in range(8)], num_threads=1, backend=Moody(client))


def test_rows_may_share_a_picture_that_was_not_read_yet(client):
    """A PIL picture reads its file at its first use; rows that use it first at once agree."""
    image = pytest.importorskip("PIL.Image")

    @sgl.function
    def show(s, picture):
        s += sgl.user(sgl.image(picture)) + sgl.assistant(sgl.gen("a"))

    buffer = io.BytesIO()
    image.effect_noise((400, 300), 50).convert("RGB").save(buffer, "jpeg")
    for _ in range(5):
        picture = image.open(io.BytesIO(buffer.getvalue()))
        states = show.run_batch([(picture,)] * 8, backend=client)
        assert len({state["a"] for state in states}) == 1


def test_the_default_backend_may_be_an_engine(client):
    """A program that sets `global_config.default_backend` itself need not wrap its engine."""
    sgl.global_config.default_backend = client
    try:
        assert ask.run("Why?")["a"] == ask.run("Why?", backend=client)["a"]
    finally:
        sgl.global_config.default_backend = None


def test_the_second_argument_of_the_async_stream_asks_for_meta_info(client):
    """The order is that of programs written for SGLang."""

    async def last() -> object:
        state = ask.run("Why?", backend=client)
        return [item async for item in state.text_async_iter("a", True)][-1]

    text, meta = asyncio.run(last())
    assert text == ask.run("Why?", backend=client)["a"]
    assert meta["finish_reason"]["type"] == "stop"


def test_programs_run_inside_programs(client):
    """Rows that run batches of their own, compiled too, on one backend, wait for nobody."""

    @sgl.function
    def outer(s, topic):
        inner = ask.compile().run_batch([(topic + str(k),) for k in range(3)], backend=client)
        s += sgl.user("".join(state["a"] for state in inner) + ask(topic, backend=client)["a"])
        s += sgl.assistant(sgl.gen("end"))

    rows = [(str(k),) for k in range(6)]
    plain = [state["end"] for state in outer.run_batch(rows, backend=client)]
    compiled = [state["end"] for state in outer.compile().run_batch(rows, backend=client)]
    assert plain == compiled
    assert len(set(plain)) == 6


def test_a_lazy_batch_that_is_dropped_ends():
    """Rows under way are cancelled, later ones never begin."""
    client = FakeClient(delay_s=0.01)
    states = ask.run_batch(
        [(str(k),) for k in range(50)], backend=client, generator_style=True, num_threads=2
    )
    next(states)
    states.close()
    num_started = len(client.requests)
    assert num_started <= 4


def test_an_exception_inside_a_copy_ends_the_copy():
    """Nothing of it runs on, and the state it was made of goes on."""
    client = FakeClient(delay_s=30)

    @sgl.function
    def program(s):
        s += sgl.user("One.")
        with pytest.raises(LookupError), s.copy() as twin:
            twin += sgl.assistant(sgl.gen("a"))
            raise LookupError
        assert isinstance(twin.error(), Aborted)
        return s.text()

    assert program.run(backend=client).ret_value == "One."
