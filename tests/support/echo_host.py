"""An engine process without an engine: it echoes, and does what a test asks of it.

A prompt "abort" kills the process, as a fault in native code would; "freeze" keeps its loop
away for good, "stop" ends its loop. The model "refused" cannot be opened, "asleep" never is.
Each opening adds a line to the file named by `served_name`; once it has a line "crash",
openings die.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

from mmserve.core import EngineConfig, RawPart, Request, RunnerFailed, UnsupportedModel
from mmserve.engine.remote import host
from mmserve.engine.remote.host import Opened
from support.echo_client import EchoClient, EchoTicket

__all__ = ["main"]

PACE_S = 0.002


class _Client(EchoClient):
    """Echoes, dies, or hangs."""

    def __init__(self) -> None:
        super().__init__(pace_s=PACE_S, answers={"long": "x" * 100_000})
        self.is_frozen = threading.Event()
        self.is_stopped = threading.Event()

    def submit(self, request: Request) -> EchoTicket:
        """As the echo client, but for the words that do harm."""
        if request.parts == (RawPart("abort"),):
            os.kill(os.getpid(), signal.SIGABRT)
        if request.parts == (RawPart("freeze"),):
            self.is_frozen.set()
        if request.parts == (RawPart("stop"),):
            self.is_stopped.set()
        return super().submit(request)

    def pulse(self) -> Future[None]:
        """A sign of life, which never comes from a frozen loop."""
        sign: Future[None] = Future()
        if self.is_stopped.is_set():
            sign.set_exception(RunnerFailed("the loop has stopped"))
        elif not self.is_frozen.is_set():
            sign.set_result(None)
        return sign


@contextlib.contextmanager
def open_echo(config: EngineConfig) -> Iterator[Opened]:
    """A client that echoes."""
    if config.model == "refused":
        raise UnsupportedModel("no model at 'refused'", hint="there is none")
    if config.model == "asleep":
        threading.Event().wait()
    if config.served_name is not None:
        book = Path(config.served_name)
        lines = book.read_text().splitlines() if book.exists() else []
        if "crash" in lines:
            sys.exit(9)
        book.write_text("\n".join([*lines, str(os.getpid())]))
    client = _Client()
    yield client, client.pulse  # type: ignore[misc]  # an echo has no looks


def main(descriptor: int) -> None:
    """Be such a process."""
    host.main(descriptor, open_echo)
