"""One call of a statement: its request, its start, its time limit, its failed end."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

from mmserve.core import (
    Aborted,
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

__all__ = ["raise_failed_end", "request_for", "start_call", "time_limit"]


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
    if timeout_s is None:
        yield
        return
    error = CallTimeout(f"a call took longer than {timeout_s:g} s", timeout_s=timeout_s)
    timer = threading.Timer(timeout_s, execution.fail, (error,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def raise_failed_end(output: Output) -> None:
    """Raise what an output says went wrong, if anything did. Pure."""
    finish = output.finish
    if finish is not None and finish.error is not None:
        raise finish.error
    if finish is not None and finish.reason in ("abort", "error"):
        message = "the backend aborted the call"
        raise Aborted(message)
