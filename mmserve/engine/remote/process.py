"""One engine process, seen from its parent: started, listened to, ended with all it started."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from mmserve.core import EngineConfig, EngineDown, MmserveError, ModelInfo
from mmserve.engine.remote.messages import Beat, Close, Message, NotOpened, Open, Ready
from mmserve.engine.remote.wire import Wire

__all__ = ["HOST", "EngineProcess"]

HOST = "mmserve.engine.remote.host"
"""Module whose `main` is the engine process."""

_START = (
    "import importlib, json, sys; sys.path[:] = json.loads(sys.argv[3]);"
    " importlib.import_module(sys.argv[1]).main(int(sys.argv[2]))"
)
_MOST_TOGETHER = 256
_LAST_LOOK_S = 0.5
_REAP_S = 5.0
_log = logging.getLogger(__name__)


class EngineProcess:
    """A process with an engine in it. Mutable: how far it is, and when it was last heard.

    Args:
        config: the engine to open.
        beat_s: how often it says that it is well, in seconds.
        on_message: told of everything but the process's own life, in a thread of its own.
        on_bad: told of messages that cannot be sent, and why.
        host: module whose `main` runs in the process.
    """

    def __init__(
        self,
        config: EngineConfig,
        beat_s: float,
        *,
        on_message: Callable[[Message], None],
        on_bad: Callable[[Message, Exception], None],
        host: str = HOST,
    ) -> None:
        self._on_message = on_message
        self._on_bad = on_bad
        self._news = threading.Condition()
        self._model: ModelInfo | None = None
        self._refusal: MmserveError | OSError | None = None
        self._is_over = False
        self._num_words = 0
        self._loop_age_s = 0.0
        self._outbox: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = _started(theirs, host)
        except BaseException:
            ours.close()
            raise
        self._wire = Wire(ours)
        self._threads = [
            threading.Thread(target=work, name=f"mmserve-engine-{name}", daemon=True)
            for name, work in (("reader", self._read), ("writer", self._write))
        ]
        for thread in self._threads:
            thread.start()
        self.send(Open(config, beat_s))

    @property
    def process_id(self) -> int:
        """The process's number. Pure."""
        return self._process.pid

    @property
    def is_over(self) -> bool:
        """Whether nothing will come of it any more. Pure."""
        return self._is_over

    @property
    def num_words(self) -> int:
        """Messages that it has sent so far; grows while it lives. Pure."""
        return self._num_words

    @property
    def loop_age_s(self) -> float:
        """Seconds since its loop last came by, when it was last heard. Pure."""
        return self._loop_age_s

    def wait_ready(self, timeout_s: float) -> ModelInfo:
        """Wait until its engine is open.

        Raises what the engine cannot be opened for, or EngineDown if the process ended, or was
        not ready after `timeout_s`: the log then has where its threads were.
        """
        with self._news:
            is_told = self._news.wait_for(
                lambda: self._is_over or self._model or self._refusal, timeout_s
            )
        if self._model is not None:
            return self._model
        if not is_told:
            self.tell_where()
            raise EngineDown(
                f"the engine process did not open its model within {timeout_s:g} s",
                hint="the log says where it was; a model that needs longer wants a longer"
                " --engine-open-s",
            )
        raise self._refusal or EngineDown(
            f"the engine process ended while it opened its model ({self.how_it_ended()})",
            hint="the log says more",
        )

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is over; False if it is not after `timeout_s`."""
        with self._news:
            return self._news.wait_for(lambda: self._is_over, timeout_s)

    def send(self, message: Message) -> None:
        """Queue a message; lost if the process ends before. Never waits."""
        self._outbox.put(message)

    def how_it_ended(self) -> str:
        """The signal or exit code that ended it, in words. Waits a moment for it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_LOOK_S)
        code = self._process.returncode
        if code is None:
            return "no end in sight"
        name = next((one.name for one in signal.Signals if one == -code), None)
        return name or f"exit code {code}"

    def close(self, patience_s: float) -> None:
        """Ask it to end, and end it if it has not after `patience_s`. Idempotent."""
        if not self._is_over:
            self.send(Close())
            self.wait(patience_s)
        if self._is_over:
            self.how_it_ended()
        self.kill()

    def tell_where(self) -> None:
        """Let it print where its threads are, for the log, if it still can."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_LAST_LOOK_S)

    def kill(self) -> None:
        """End it at once, with the processes it started; frees all. Idempotent."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)  # it leads a group of its own
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_REAP_S)
        self._wire.close()
        self._outbox.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_REAP_S)
        if not any(thread.is_alive() for thread in self._threads):
            self._wire.free()

    # --- threads -----------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            while True:
                for message in self._wire.receive():
                    self._take(message)
        except EOFError:
            pass
        except Exception:  # noqa: BLE001 - whoever sends nonsense is replaced
            _log.exception("the engine process said something that cannot be read")
        self._wire.close()
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def _take(self, message: Message) -> None:
        self._num_words += 1
        match message:
            case Beat(loop_age_s):
                self._loop_age_s = loop_age_s
            case Ready(model):
                with self._news:
                    self._model = model
                    self._news.notify_all()
            case NotOpened(error):
                with self._news:
                    self._refusal = error
                    self._news.notify_all()
            case _:
                self._on_message(message)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the reader notices
            while (messages := self._next()) is not None:
                self._wire.send(messages, self._on_bad)

    def _next(self) -> list[Message] | None:
        """What waits to be sent, in order; None at the end. Waits for it."""
        message = self._outbox.get()
        found: list[Message] = []
        while message is not None:
            found.append(message)
            if len(found) >= _MOST_TOGETHER or self._outbox.empty():
                return found
            message = self._outbox.get()
        return None


def _started(end: socket.socket, host: str) -> subprocess.Popen[bytes]:
    """The process, in a session of its own, and deaf to what ends servers from outside.

    A terminal or a service manager sends signals to all processes of a server at once; this
    one ends when its parent says so, or is gone.
    """
    paths = json.dumps([path for path in sys.path if isinstance(path, str)])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _START, host, str(end.fileno()), paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(end.fileno(),),
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
