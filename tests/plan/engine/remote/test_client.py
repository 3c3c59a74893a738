"""A remote engine behaves as the client at the other end of its wire does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass

import pytest
from support.echo_client import EchoClient

from mmserve.core import (
    BytesSource,
    EngineDown,
    ImagePart,
    MediaRefused,
    MmserveError,
    NotFound,
    Output,
    RawPart,
    Request,
    SamplingParams,
)
from mmserve.engine.remote.client import RemoteEngine
from mmserve.engine.remote.host import Host
from mmserve.engine.remote.messages import Beat, Close, Message, Ready
from mmserve.engine.remote.wire import Wire

LONG = 3000


def pulse() -> Future[None]:
    """A loop that always comes by."""
    sign: Future[None] = Future()
    sign.set_result(None)
    return sign


@dataclass
class Pair:
    """An echo client, and a remote engine that reaches it over a wire."""

    echo: EchoClient
    remote: RemoteEngine
    wires: tuple[Wire, Wire]
    beats: list[Beat]

    def break_off(self) -> None:
        """What a supervisor does when the process is gone."""
        self.remote.disconnect(EngineDown("gone", retry_after_s=2))


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both sides in this process, each with threads of its own."""
    ends = socket.socketpair()
    wires = Wire(ends[0]), Wire(ends[1])
    echo, remote = EchoClient(), RemoteEngine()
    found = Pair(echo, remote, wires, [])
    host = Host(echo, wires[1], pulse, beat_s=0.01)  # type: ignore[arg-type]
    is_ready = threading.Event()

    def send(message: Message) -> None:
        wires[0].send([message], remote.fail)

    def read() -> None:
        try:
            while True:
                for message in wires[0].receive():
                    if isinstance(message, Ready):
                        remote.connect(send, message.model)
                        is_ready.set()
                    elif isinstance(message, Beat):
                        found.beats.append(message)
                    else:
                        remote.take(message)
        except EOFError:
            pass

    threads = [threading.Thread(target=work) for work in (host.serve, read)]
    for thread in threads:
        thread.start()
    is_ready.wait()
    yield found
    send(Close())
    threads[0].join()
    host.stop()
    wires[1].close()
    threads[1].join()
    for wire in wires:
        wire.free()


def request(text: str, **params: object) -> Request:
    """A prompt to be echoed."""
    sampling = SamplingParams(max_new_tokens=None, **params)  # type: ignore[arg-type]
    return Request(request_id="r", parts=(RawPart(text),), sampling=sampling)


async def read_all(ticket: object) -> list[Output]:
    """All outputs, as an event loop reads them."""
    return [output async for output in ticket.outputs_async()]  # type: ignore[attr-defined]


def test_what_is_held_is_held_and_let_go_over_there(pair):
    """In order with the requests between; letting go twice is once."""
    part = ImagePart(BytesSource(b"x"))
    release = pair.remote.hold(part, cache_salt="s")
    list(pair.remote.submit(request("hello")).outputs())
    release()
    release()
    assert pair.remote.tokenize("x")
    assert pair.echo.released == [(part, "s", 0, 1)]


def test_a_ticket_says_what_the_far_one_says(pair):
    """Report and outputs of several sequences, with log-probabilities, are the same."""
    asked = request("hello", n=3, return_logprobs=True, top_logprobs=2)
    far = pair.echo.submit(asked)
    near = pair.remote.submit(asked)
    assert near.report() == far.report()
    assert list(near.outputs()) == list(far.outputs())


def test_a_ticket_is_read_on_an_event_loop_too(pair):
    """`report_async` and `outputs_async` give the same as their namesakes that block."""

    async def ask() -> tuple[object, list[Output]]:
        ticket = pair.remote.submit(request("hello"))
        return await ticket.report_async(), await read_all(ticket)

    report, outputs = asyncio.run(ask())
    far = pair.echo.submit(request("hello"))
    assert (report, outputs) == (far.report(), list(far.outputs()))


def test_refusals_are_raised_by_the_ticket(pair):
    """A refusal keeps its class and words, and comes from report and outputs alike."""
    pair.echo.refusals["bad"] = NotFound("no such adapter", what="adapter")
    ticket = pair.remote.submit(request("bad"))
    for read in (ticket.report, lambda: list(ticket.outputs())):
        with pytest.raises(NotFound, match="no such adapter"):
            read()
    assert pair.remote.num_open == 0


def test_failures_amid_an_answer_arrive(pair):
    """A sequence that fails ends with its error, after what it had said."""
    pair.echo.failures["fall"] = (2, MediaRefused("unreadable", reason="undecodable"))
    outputs = list(pair.remote.submit(request("fall")).outputs())
    assert "".join(output.text for output in outputs) == "fa"
    assert isinstance(outputs[-1].finish.error, MediaRefused)


def test_cancelling_ends_the_far_request(pair):
    """Cancelled twice or after its end, a request ends once, and at the other side too."""
    pair.echo.answers["long"] = "x" * LONG
    pair.echo.pace_s = 0.002
    ticket = pair.remote.submit(request("long"))
    outputs = ticket.outputs()
    next(outputs)
    ticket.cancel()
    ticket.cancel()
    rest = list(outputs)
    assert [output.finish.reason for output in rest if output.finish] == ["abort"]
    assert pair.echo.tickets[0].ends == {0: "abort"}
    ticket.cancel()
    assert pair.remote.num_open == 0


def test_a_slow_reader_holds_little(pair):
    """Whoever reads late gets all of the text in few outputs."""
    pair.echo.answers["long"] = "x" * LONG
    ticket = pair.remote.submit(request("long"))
    while not ticket.is_settled:
        threading.Event().wait(0.01)
    outputs = list(ticket.outputs())
    assert "".join(output.text for output in outputs) == "x" * LONG
    assert len(outputs) < 300


def test_every_request_ends_once_when_the_engine_goes(pair):
    """Accepted ones end with an error for each open sequence, new ones are refused at once."""
    pair.echo.answers["long"] = "x" * LONG
    pair.echo.pace_s = 0.01
    tickets = [pair.remote.submit(request("long", n=2)) for _ in range(5)]
    for ticket in tickets:
        ticket.report()
    pair.break_off()
    pair.break_off()
    for ticket in tickets:
        ends = [output for output in ticket.outputs() if output.finish is not None]
        assert sorted(end.index for end in ends) == [0, 1]
        assert all(isinstance(end.finish.error, EngineDown) for end in ends)
        assert all(end.timing is not None for end in ends)
    late = pair.remote.submit(request("late"))
    with pytest.raises(EngineDown, match="gone"):
        late.report()
    with pytest.raises(EngineDown):
        pair.remote.tokenize("x")
    assert pair.remote.num_open == 0


def test_a_request_that_waits_is_refused_when_the_engine_goes(pair):
    """One that was not accepted yet raises the error from its report."""
    pair.echo.pace_s = 30.0
    ticket = pair.remote.submit(request("x"))
    pair.break_off()
    with pytest.raises(EngineDown) as raised:
        ticket.report()
    assert raised.value.fields["retry_after_s"] == 2


def test_calls_give_what_the_client_gives(pair):
    """Token ids and back, drawings, flushing, counters and hints reach the other side."""
    part = ImagePart(BytesSource(bytes(300_000)))
    pair.remote.prepare(part, cache_salt="salt", client="me")
    ids = pair.remote.tokenize("hé", add_special_tokens=True)
    assert ids == pair.echo.tokenize("hé", add_special_tokens=True)
    assert pair.remote.detokenize(ids, skip_special_tokens=False) == "<s>hé"
    assert pair.remote.drawing("radix", "svg") == "radix as svg"
    assert pair.remote.flush_cache() is True
    assert pair.echo.prepared == [(part, "salt", "me")]
    own = {"engine_up": 1.0, "engine_restarts_total": 0.0}
    assert pair.remote.counters() == pair.echo.counters() | own
    assert pair.remote.model == pair.echo.model


def test_calls_raise_what_the_client_raises(pair):
    """An error of the house is itself; any other says no more than its class."""
    pair.echo.is_broken = True
    with pytest.raises(MmserveError, match="the loop has stopped"):
        pair.remote.drawing("radix")
    with pytest.raises(MmserveError, match="AttributeError"):
        pair.remote.look(ImagePart(BytesSource(b"x")))
    assert pair.remote.num_open == 0


def test_what_cannot_be_sent_is_refused(pair):
    """A request with a value of no known kind ends, and the next one is answered."""
    odd = Request(request_id="r", parts=(object(),))  # type: ignore[arg-type]
    with pytest.raises(MmserveError, match="cannot be handed"):
        pair.remote.submit(odd).report()
    assert pair.remote.submit(request("ok")).report() is not None


def test_counters_tell_that_the_engine_is_down(pair):
    """While there is no engine, the counters say so and do not raise."""
    pair.break_off()
    assert pair.remote.counters() == {"engine_up": 0.0, "engine_restarts_total": 0.0}


def test_the_host_says_that_it_is_well(pair):
    """Signs of life come without being asked for."""
    while len(pair.beats) < 3:
        threading.Event().wait(0.01)
    assert pair.beats[0] == Beat(0.0)
