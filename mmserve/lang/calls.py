"""One call of a statement: its request, its start, its time limit, its failed end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    CallTimeout,
    Output,
    Part,
    Request,
    SamplingParams,
)
from mmserve.lang.backends.port import Call
from mmserve.lang.execution import Execution
from mmserve.lang.parameters import CallOptions

__all__ = ["acting_after", "news", "request_for", "start_call", "time_limit"]


def request_for(
    options: CallOptions, parts: tuple[Part, ...], sampling: SamplingParams
) -> Request:
    """A request with a new id. Raises BadRequest for an empty prompt."""
    if not parts:
        message = "a call has an empty prompt"
        raise BadRequest(message, field="prompt", reason="empty", hint="append something first")
    return Request(
        request_id=os.urandom(12).hex(),
        parts=parts,
        sampling=sampling,
        cache_salt=options.cache_salt,
        priority=options.priority,
    )


def start_call(execution: Execution, request: Request) -> Call:
    """Hand a request in; it is aborted if the state fails. Changes: the execution's calls."""
    call = execution.setting.backend.start(request)
    execution.hold(call)
    return call


@contextlib.contextmanager
def time_limit(execution: Execution, timeout_s: float | None) -> Iterator[None]:
    """Fail the state with CallTimeout if the block takes longer; None is no limit."""

    def fail() -> None:
        message = f"a call took longer than {timeout_s:g} s"
        execution.fail(CallTimeout(message, timeout_s=timeout_s))

    with acting_after(timeout_s, fail):
        yield


@contextlib.contextmanager
def acting_after(timeout_s: float | None, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` from a thread of its own if the block takes longer; None is no limit."""
    if timeout_s is None:
        yield
        return
    timer = threading.Timer(timeout_s, act)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def news(execution: Execution, request: Request) -> Iterator[Output]:
    """Start a call and give its outputs until it ends or the state has failed.

    Raises what the outputs say went wrong, and BackendFailed if an answer has no end. Changes:
    the execution's calls.
    """
    num_ended = 0
    for output in start_call(execution, request).outputs():
        if execution.error is not None:
            return
        _raise_failed_end(output)
        num_ended += output.finish is not None
        yield output
    if num_ended < request.sampling.n and execution.error is None:
        message = "the backend ended a call without an end of every answer"
        raise BackendFailed(message, status=None)


def _raise_failed_end(output: Output) -> None:
    finish = output.finish
    if finish is not None and finish.error is not None:
        raise finish.error
    if finish is not None and finish.reason in ("abort", "error"):
        message = "the backend aborted the call"
        raise Aborted(message)
