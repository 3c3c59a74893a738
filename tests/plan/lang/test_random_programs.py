"""Random programs end with the result of a naive interpreter, however they are run."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from support.programs.body import endings, play
from support.programs.draw import programs
from support.programs.naive import Either, LeftToTime, State, Variable, Wrong, agrees
from support.programs.naive_body import outcome
from support.programs.naive_body import play as play_naively
from support.programs.tree import source

import mmserve.lang as sgl
from mmserve.core import BackendFailed, Request
from mmserve.testing.fake_client import FakeClient

logging.getLogger("mmserve.lang").addHandler(logging.NullHandler())  # failures by the hundred
PATIENCE_S = [20.0]  # shrinks after the first hang, so that the shrinking ends
NAMES = ["x", "y", "z", "v0", "v1", "unknown"]


def jittered(prompt: str, _request: Request) -> str:
    """The fake's own rule; every fourth prompt takes a millisecond."""
    digest = hashlib.sha256(prompt.encode()).hexdigest()
    if digest[-1] in "0123":
        time.sleep(0.001)
    return digest[:8]


def fake() -> FakeClient:
    """A fake engine that answers at uneven speeds, and fails where a prompt holds BOOM."""
    boom = BackendFailed("the server answered with status 500", status=500)
    return FakeClient(jittered, failures={"BOOM": boom})


@sgl.function
def drawn(s, program, notes):
    """Any program; what it notes on the way is also what it returns."""
    play(s, program, notes)
    return notes


def watched(program: Any, run: Callable[[], Any]) -> Any:
    """What `run` gives, or the error it raises; a failure if it does not end."""
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(run())
        except Exception as error:  # noqa: BLE001  compared with what is expected
            ended.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(PATIENCE_S[0])
    if not ended:
        PATIENCE_S[0] = 2.0
        pytest.fail(f"this program hangs:\n{source(program)}")
    return ended[0]


def tried(read: Callable[[], Any]) -> Any:
    """What `read` gives, or the error it raises."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001  compared with what is expected
        return error


def expected(program: Any) -> dict[str, Any] | None:
    """All that a run of the program shows, by the naive interpreter; None if time decides."""
    root, notes = State(), []
    try:
        raised = outcome(lambda: play_naively(root, program, notes))
    except LeftToTime:
        return None
    if isinstance(raised, Wrong):
        root.end(raised.kinds)
    root.settle()
    shown: dict[str, Any] = {"notes": notes, "raised": raised}
    shown["error"] = Wrong(*root.failure) if root.failure else None
    shown["text"] = shown["streamed"] = outcome(root.text)
    shown["messages"] = shown["error"] or root.content.messages()
    for name in NAMES:
        variable = root.variables.get(name)
        absent = Wrong(*(root.failure or {"UnknownVariable"}))
        shown[f"{name} in"] = variable is not None
        shown[name] = absent if variable is None else variable.value
        shown[f"{name} ends"] = absent if variable is None else ends_of(variable)
    return shown


def ends_of(variable: Variable) -> object:
    """Why the calls of a variable ended, or what asking for it raises."""
    meta = Wrong("ProgramMisuse") if variable.meta is None else variable.meta
    match variable.value:
        case Wrong() as error:
            return error
        case Either(_, kinds):
            return (
                Wrong(*meta.kinds, *kinds) if isinstance(meta, Wrong) else Either(meta, kinds)
            )
    return meta


def shown(
    state: sgl.ProgramState, notes: list[object], *, is_streaming: bool
) -> dict[str, Any]:
    """All that a run of the program shows."""
    found: dict[str, Any] = {}
    if is_streaming:
        found["streamed"] = tried(lambda: "".join(state.text_iter()))
    returned = tried(lambda: state.ret_value)
    found["raised"] = returned if isinstance(returned, BaseException) else None
    found["notes"] = notes
    found["error"] = state.error()
    found["text"] = tried(state.text)
    found["messages"] = tried(state.messages)
    for name in NAMES:
        found[f"{name} in"] = name in state
        found[name] = tried(lambda name=name: state[name])
        found[f"{name} ends"] = tried(lambda name=name: endings(state.get_meta_info(name)))
    return found


def compare(program: Any, how: str, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Fail with the program where they do not agree."""
    for key, value in found.items():
        if not agrees(value, wanted[key]):
            pytest.fail(
                f"{how}: {key} is {value!r}, not {wanted[key]!r}, in\n{source(program)}"
            )


def run_once(program: Any, *, stream: bool, use_thread: bool) -> dict[str, Any]:
    """Run it; what it shows, or only how its body failed where `run` raises."""
    notes: list[object] = []
    try:
        state = drawn.run(program, notes, backend=fake(), stream=stream, use_thread=use_thread)
    except Exception as error:  # noqa: BLE001  compared with what is expected
        return {"raised": error, "notes": notes}
    return shown(state, notes, is_streaming=stream)


MODES = [(False, True), (False, False), (True, True), (True, False)]  # stream, use_thread


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(programs())
def test_a_program_ends_with_the_naive_result(program):
    """Threaded or stepwise, streamed or not: text, turns, names, errors and notes are equal."""
    wanted = expected(program)
    for stream, use_thread in MODES:
        found = watched(
            program, lambda s=stream, t=use_thread: run_once(program, stream=s, use_thread=t)
        )
        if wanted is not None:
            compare(program, f"stream={stream} use_thread={use_thread}", found, wanted)
    if wanted is None:
        reject()  # it has ended, and has no single result


@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(programs(), min_size=8, max_size=8))
def test_rows_of_a_batch_end_with_the_naive_results(rows):
    """One row's mistakes do not show in another's result, with 1 thread and with 16."""
    wanted = [expected(program) for program in rows]
    for num_threads in (1, 16):
        notes: list[list[object]] = [[] for _ in rows]
        batch = list(zip(rows, notes, strict=True))
        states = watched(
            rows[0],
            lambda b=batch, n=num_threads: drawn.run_batch(b, backend=fake(), num_threads=n),
        )
        for program, noted, state, want in zip(rows, notes, states, wanted, strict=True):
            if want is not None:
                found = shown(state, noted, is_streaming=False)
                compare(program, f"num_threads={num_threads}", found, want)
