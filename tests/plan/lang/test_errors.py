"""The error model: typed, raised at reading, never a hang, nothing left running."""

from __future__ import annotations

import asyncio
import gc
import logging
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import Aborted, BackendFailed, CallTimeout, ProgramMisuse


def run(client, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=client, **values)


def failing(s):
    """A good call, a failing one, and one after it."""
    s += "a" + sgl.gen("good", max_tokens=1)
    s += "BOOM" + sgl.gen("x", max_tokens=1)
    s += sgl.gen("y", max_tokens=1)


@pytest.mark.parametrize("name", ["x", "y"])
def test_a_failed_call_raises_at_its_name_and_at_later_ones(client, name):
    """The first error, with its status."""
    with pytest.raises(BackendFailed) as caught:
        run(client, failing)[name]

    assert caught.value.fields["status"] == 500


def test_names_before_the_failure_can_be_read(client):
    """What was answered stays answered."""
    assert len(run(client, failing)["good"]) == 1


@pytest.mark.parametrize(
    "read",
    [
        lambda state: state.text(),
        lambda state: state.sync(),
        lambda state: state.messages(),
        lambda state: list(state.text_iter("x")),
        lambda state: list(state.text_iter()),
        lambda state: state.get_meta_info("y"),
        lambda state: state.value("x"),
    ],
)
def test_every_read_of_a_failed_state_raises(client, read):
    """None of them hangs or ends in silence."""
    with pytest.raises(BackendFailed):
        read(run(client, failing))


def test_error_gives_the_first_error_or_none(client):
    """It waits, and does not raise."""
    assert isinstance(run(client, failing).error(), BackendFailed)
    assert run(client, lambda s: None).error() is None


def test_later_appends_do_not_run(client):
    """The call after the failed one is never made."""
    run(client, failing).error()

    assert len(client.requests) == 2


def test_an_append_after_the_failure_fails_at_once(client):
    """Reading its name raises the first error, without waiting."""
    state = run(client, failing)
    state.error()
    state += sgl.gen("z")
    with pytest.raises(BackendFailed):
        state["z"]
    assert "z" in state


def test_a_failed_scope_raises(client):
    """The scope's name is known while it is pending, and raises."""

    def body(s):
        with s.var_scope("v"):
            s += "BOOM" + sgl.gen("x", max_tokens=1)

    state = run(client, body)

    assert "v" in state
    with pytest.raises(BackendFailed):
        state["v"]


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s["v"],
        lambda s: s.get_meta_info("v"),
        lambda s: list(s.text_iter("v")),
        lambda s: s.fork(1)[0]["v"],
        lambda s: [child["v"] for child in s.fork(1).as_completed("v")],
    ],
)
@pytest.mark.parametrize("use_thread", [True, False])
def test_reading_a_scope_inside_itself_is_a_misuse(client, read, use_thread):
    """It would wait for its own end for ever."""

    def body(s):
        with s.var_scope("v"):
            s += "a"
            read(s)

    with pytest.raises(ProgramMisuse, match="before it has ended"):
        run(client, body, use_thread=use_thread)


def test_a_scope_that_could_not_end_raises_when_read(client):
    """Its fork was joined inside the scope; no reader waits for an end that never comes."""

    def body(s):
        forks = s.fork(1)
        with pytest.raises(ProgramMisuse), forks[0].var_scope("v"):
            forks[0] += "a"
            forks.join()
        return forks

    (child,) = run(client, body).ret_value
    with pytest.raises(ProgramMisuse, match="before it has ended"):
        child["v"]


@pytest.mark.parametrize("name", ["x", "y", None])
def test_a_stream_ends_with_the_error(client, name):
    """Never in silence, from a thread or from an event loop."""
    with pytest.raises(BackendFailed):
        list(run(client, failing, stream=True).text_iter(name))

    async def main():
        state = run(client, failing, stream=True)
        return [piece async for piece in state.text_async_iter(name)]

    with pytest.raises(BackendFailed):
        asyncio.run(main())


def test_the_bodys_exception_leaves_run_and_aborts_its_calls(slow_client):
    """Calls and forks end on the server."""

    def body(s):
        s += "a"
        forks = s.fork(2)
        forks += sgl.gen("x")
        s += sgl.gen("y")
        time.sleep(0.1)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        run(slow_client, body)
    deadline = time.monotonic() + 2
    while slow_client.num_running and time.monotonic() < deadline:
        time.sleep(0.01)

    assert slow_client.num_running == 0
    assert sum(ticket.is_cancelled.is_set() for ticket in slow_client.tickets) == 3


def test_a_streaming_bodys_exception_is_raised_at_reading(client):
    """With stream=True the run has returned before."""

    def body(s):
        s += "a"
        raise ValueError("mine")

    state = run(client, body, stream=True)
    with pytest.raises(ValueError, match="mine"):
        list(state.text_iter())
    with pytest.raises(ValueError, match="mine"):
        state["never"]


def test_a_child_of_a_failed_prefix_raises_the_same_error(client):
    """Forked after a failing call, children raise it and nothing hangs."""

    def body(s):
        s += "BOOM" + sgl.gen("x", max_tokens=1)
        forks = s.fork(2)
        forks += sgl.gen("y", max_tokens=1)
        return forks

    forks = run(client, body).ret_value
    for child in forks:
        with pytest.raises(BackendFailed):
            child["y"]


def test_a_timeout_bounds_a_call(slow_client):
    """It is raised in time, and the call is aborted."""

    def body(s):
        s += "a" + sgl.gen("x", timeout_s=0.1)

    with pytest.raises(CallTimeout) as caught:
        run(slow_client, body)["x"]

    assert caught.value.fields["timeout_s"] == 0.1
    assert slow_client.tickets[0].is_cancelled.is_set()


def test_a_runs_timeout_holds_for_selects_too(slow_client):
    """Every call of the run is bounded."""
    slow_client.submit = lambda request: _Stuck()

    def body(s):
        s += "a" + sgl.select("x", ["b"])

    with pytest.raises(CallTimeout):
        run(slow_client, body, timeout_s=0.1)["x"]


class _Stuck:
    """A ticket that never says anything, and ignores being cancelled."""

    request_id = "stuck"

    def report(self, timeout_s=None):
        time.sleep(3)

    def outputs(self):
        time.sleep(3)
        yield from ()

    def cancel(self):
        pass


def test_cancel_aborts_and_reads_raise(slow_client):
    """A cancelled state raises Aborted; its call is aborted."""

    def body(s):
        s += "a" + sgl.gen("x")

    state = run(slow_client, body)
    while not slow_client.tickets:
        time.sleep(0.005)
    state.cancel()
    with pytest.raises(Aborted):
        state["x"]
    assert slow_client.tickets[0].is_cancelled.wait(2)


def test_cancel_leaves_a_finished_state_alone(client):
    """What was answered can still be read."""

    def body(s):
        s += "a" + sgl.gen("x", max_tokens=1)

    state = run(client, body)
    state.sync()
    state.cancel()

    assert state.text() == "a" + state["x"]


def test_an_unread_error_is_logged_once(client, caplog):
    """A failure that nobody read leaves a line when the state goes."""
    state = run(client, failing)
    execution = state.execution
    execution.monitor.wait(lambda: execution.error is not None)
    with caplog.at_level(logging.ERROR, logger="mmserve.lang"):
        del state
        gc.collect()

    assert len([record for record in caplog.records if "nobody read" in record.message]) == 1


def test_a_read_error_is_not_logged(client, caplog):
    """Whoever saw it need not be told again."""
    state = run(client, failing)
    with pytest.raises(BackendFailed):
        state["x"]
    with caplog.at_level(logging.ERROR, logger="mmserve.lang"):
        del state
        gc.collect()

    assert caplog.records == []


def test_ctrl_c_while_reading_aborts_everything(slow_client, monkeypatch):
    """KeyboardInterrupt in a waiting reader cancels the run and goes on."""

    def body(s):
        s += "a" + sgl.gen("x")

    state = run(slow_client, body)
    while not slow_client.tickets:
        time.sleep(0.005)
    condition = state.execution.monitor._condition

    def interrupted(predicate, timeout=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(condition, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        state["x"]

    assert slow_client.tickets[0].is_cancelled.wait(2)
    assert isinstance(state.execution.error, Aborted)
