"""Batches: rows in order, apart from each other, never a hang."""

from __future__ import annotations

import threading
import time

import pytest

import mmserve.lang as sgl
from mmserve.core import BackendFailed, BadRequest, MediaRefused, ProgramMisuse


@sgl.function
def program(s, q):
    """One question, one answer."""
    s += sgl.user(q)
    s += sgl.assistant(sgl.gen("a", max_tokens=4))


ROWS = [{"q": f"question {index}"} for index in range(8)]


def test_states_come_in_the_order_of_the_rows(client):
    """Each answer is its own row's."""
    states = program.run_batch(ROWS, backend=client, num_threads=3)
    alone = [program.run(**row, backend=client)["a"] for row in ROWS]

    assert [state["a"] for state in states] == alone
    assert [state.row for state in states] == list(range(8))


def test_tuples_go_by_position(client):
    """Rows may be tuples."""
    assert (
        program.run_batch([("x",), ("y",)], backend=client)[1].messages()[0]["content"] == "y"
    )


def test_an_empty_batch_gives_nothing(client):
    """No backend is needed for it."""
    assert program.run_batch([]) == []
    assert list(program.run_batch([], generator_style=True)) == []


@pytest.mark.parametrize(
    "rows",
    [
        [{"q": "a"}, ("b",)],
        [{"q": "a"}, "b"],
        [{"q": "a"}, {"r": "b"}],
        [("a",), ("b", "c")],
        "ab",
    ],
)
def test_bad_rows_are_refused_before_anything_runs(client, rows):
    """Mixed kinds, wrong names and wrong counts."""
    with pytest.raises(ProgramMisuse):
        program.run_batch(rows, backend=client)
    assert client.requests == []


@pytest.mark.parametrize("num_threads", [0, -1, True, "many"])
def test_a_bad_number_of_threads_is_refused(client, num_threads):
    """It is "auto" or at least 1."""
    with pytest.raises(BadRequest):
        program.run_batch(ROWS, backend=client, num_threads=num_threads)


def test_rows_are_not_changed(client):
    """A row is the caller's."""
    rows = [{"q": "a"}]
    program.bind().run_batch(rows, backend=client)

    assert rows == [{"q": "a"}]


def test_the_body_runs_once_a_row_on_real_arguments(client):
    """Two rows, two calls, no dummies."""
    calls = []
    sgl.function(lambda s, q: calls.append(q)).run_batch([{"q": 1}, {"q": 2}], backend=client)

    assert sorted(calls) == [1, 2]


def test_at_most_num_threads_rows_run_at_once(slow_client):
    """The most bodies seen at once is the number asked for."""
    lock = threading.Lock()
    running, most = [0], [0]

    @sgl.function
    def counting(s, q):
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        s += q + sgl.gen("a", max_tokens=1)
        s.sync()
        with lock:
            running[0] -= 1

    counting.run_batch(ROWS, backend=slow_client, num_threads=2)

    assert most[0] == 2


@pytest.mark.parametrize("progress_bar", [False, True])
def test_bad_rows_do_not_touch_good_ones(client, progress_bar):
    """A body's exception, a missing picture, a bad regex: three errors, five results."""

    @sgl.function
    def mixed(s, q):
        s += f"{q}" + sgl.gen("a", max_tokens=2)
        if q == 2:
            raise ValueError("row 2")
        if q == 5:
            s += sgl.image("/no/such/picture.png")
        if q == 6:
            s += sgl.gen("b", regex="(")

    states = mixed.run_batch(
        [{"q": index} for index in range(8)],
        backend=client,
        num_threads=2,
        progress_bar=progress_bar,
    )

    assert [state.error() is None for state in states] == [
        True,
        True,
        False,
        True,
        True,
        False,
        False,
        True,
    ]
    assert isinstance(states[5].error(), MediaRefused)
    with pytest.raises(ValueError, match="row 2"):
        states[2].text()
    deadline = time.monotonic() + 10
    while client.num_running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert client.num_running == 0


def test_a_row_that_exits_does_not_hang_the_batch(client):
    """Even SystemExit is an error of its row only."""

    @sgl.function
    def leaving(s, q):
        raise SystemExit

    states = leaving.run_batch([("a",), ("b",)], backend=client)

    assert [state.error() is None for state in states] == [False, False]


def test_raise_stops_the_batch_at_the_first_error(slow_client):
    """No new rows, running ones cancelled, the row's number on the error."""
    rows = [{"q": "BOOM" if index == 1 else f"{index}"} for index in range(8)]
    with pytest.raises(BackendFailed) as caught:
        program.run_batch(rows, backend=slow_client, num_threads=2, on_error="raise")

    assert caught.value.row == 1
    assert len(slow_client.requests) < 8


def test_an_unknown_way_with_errors_is_refused(client):
    """A misspelt `on_error` raises before a row runs."""
    with pytest.raises(ProgramMisuse, match="allowed are return and raise"):
        program.run_batch(ROWS, backend=client, on_error="keep")

    assert client.requests == []


def test_a_generator_gives_states_lazily_in_order(client):
    """At most num_threads rows run ahead of the reader."""
    states = program.run_batch(ROWS, backend=client, num_threads=2, generator_style=True)
    first = next(states)
    time.sleep(0.2)
    num_ahead = len(client.requests)
    rest = list(states)

    assert num_ahead <= 3
    assert [state.row for state in [first, *rest]] == list(range(8))


def test_as_completed_gives_states_as_they_finish(slow_client):
    """A short row overtakes a long one."""

    @sgl.function
    def sized(s, q):
        s += "a" + sgl.gen("a", max_tokens=q)

    rows = [{"q": 8}, {"q": 1}]
    states = sized.run_batch(rows, backend=slow_client, as_completed=True)

    assert [state.row for state in states] == [1, 0]


def test_closing_a_generator_cancels_what_runs(slow_client):
    """Nothing is left on the server."""
    states = program.run_batch(ROWS, backend=slow_client, num_threads=2, generator_style=True)
    next(states)
    states.close()
    deadline = time.monotonic() + 2
    while slow_client.num_running and time.monotonic() < deadline:
        time.sleep(0.01)

    assert slow_client.num_running == 0
    assert len(slow_client.requests) < 8


def test_sampling_values_reach_every_row(client):
    """They are defaults, as in `run`."""
    program.run_batch(ROWS[:2], backend=client, temperature=0.25)

    assert {request.sampling.temperature for request in client.requests} == {0.25}
