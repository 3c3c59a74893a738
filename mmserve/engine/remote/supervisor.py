"""Keeps an engine process running behind a `RemoteEngine`.

    starting --ready--> up --died, or hung and killed--> waiting --delay--> starting
       |                                                     |
       '-- first start refused, or too long: raised          '-- too often: gives up

The delay doubles with each failure in a row, and is short again after the engine was well for
a while.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mmserve.core import EngineConfig, EngineDown, MmserveError
from mmserve.engine.remote.client import RemoteEngine
from mmserve.engine.remote.process import HOST, EngineProcess

__all__ = ["Supervision", "Supervisor"]

_DOWN = "the engine has stopped, another is being started"
_AGAIN = "send the request again"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """When an engine counts as hung, and how often another is tried.

    Args:
        open_s: longest that it may take to open its model, what it downloads included.
        stuck_s: longest that its loop may stay away (one step, with all that it compiles).
        silence_s: longest that its process may say nothing at all.
        beat_s: how often it says that it is well.
        first_delay_s: wait before the first restart; each failure in a row doubles it.
        most_delay_s: longest wait before a restart.
        well_s: so long after a start, earlier failures are forgotten.
        max_failures: failures in a row after which no restart follows.
        close_s: longest that it may take to end when told to.
    """

    open_s: float = 3600.0
    stuck_s: float = 120.0
    silence_s: float = 30.0
    beat_s: float = 1.0
    first_delay_s: float = 0.5
    most_delay_s: float = 30.0
    well_s: float = 60.0
    max_failures: int = 5
    close_s: float = 5.0


class Supervisor:
    """Starts an engine process, and another whenever it must. Mutable: the process.

    As a context manager it opens with the first start and closes the process at the end.

    Args:
        config: the engine to open.
        ways: when it counts as hung, and how often another is tried.
        host: module whose `main` runs in the process; tests put a fake engine there.
    """

    def __init__(
        self, config: EngineConfig, ways: Supervision | None = None, *, host: str = HOST
    ) -> None:
        self.client = RemoteEngine()
        self._config = config
        self._ways = ways or Supervision()
        self._host = host
        self._process: EngineProcess | None = None
        self._closing = threading.Event()
        self._failure: MmserveError | None = None
        self._num_failures = 0
        self._start_s = 0.0
        self._thread = threading.Thread(
            target=self._keep_up, name="mmserve-supervisor", daemon=True
        )

    @property
    def failure(self) -> MmserveError | None:
        """Why it has given up, or None while it has not. Pure."""
        return self._failure

    @property
    def num_failures(self) -> int:
        """Failures in a row, those forgiven not counted. Pure."""
        return self._num_failures

    @property
    def process_id(self) -> int | None:
        """The number of the latest engine process. Pure."""
        return None if self._process is None else self._process.process_id

    def start(self) -> None:
        """Start the engine and wait until it is ready. Changes: the client is connected.

        Raises what it cannot be opened for: only an engine that once was well is restarted.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        self._thread.start()

    def close(self, patience_s: float | None = None) -> None:
        """End the engine process, by force after `patience_s`. Idempotent.

        Changes: what is still open then ends with an error.
        """
        self._closing.set()
        process = self._process
        if process is not None:
            process.close(self._ways.close_s if patience_s is None else patience_s)
        if self._thread.is_alive():
            self._thread.join()  # a process that it has started meanwhile, it has ended too
        self.client.disconnect(EngineDown("the engine is closed"))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- the supervisor's thread -------------------------------------------------------------

    def _keep_up(self) -> None:
        while not self._closing.is_set():
            why = self._watch()
            if self._closing.is_set():
                return
            self._fall(why)
            while not self._closing.is_set() and self._failure is None:
                if self._closing.wait(self._delay_s()):
                    return
                try:
                    self._start()
                    break
                except (MmserveError, OSError) as error:
                    if not self._closing.is_set():
                        self._fall(f"did not start: {error}")
            if self._failure is not None:
                return

    def _start(self) -> None:
        """Changes: the process; the client is connected once it is ready."""
        started_at = time.monotonic()
        client = self.client
        process = EngineProcess(
            self._config,
            self._ways.beat_s,
            on_message=client.take,
            on_bad=client.fail,
            host=self._host,
        )
        self._process = process
        if self._closing.is_set():
            process.kill()
        model = process.wait_ready(self._ways.open_s)
        self._start_s = time.monotonic() - started_at
        client.connect(process.send, model)

    def _watch(self) -> str:
        """Wait until the process ends, or hangs and is ended; says how it came."""
        process, ways = self._process, self._ways
        assert process is not None  # noqa: S101 - it has been started
        tick_s = min(0.25, ways.silence_s / 8)
        quiet_s, well_s, num_words = 0.0, 0.0, -1
        before = time.monotonic()
        while not process.wait(tick_s):
            now = time.monotonic()
            # when this process itself was held up, the time says nothing about the other
            passed_s, before = min(now - before, 2 * tick_s), now
            quiet_s = quiet_s + passed_s if process.num_words == num_words else 0.0
            num_words = process.num_words
            well_s += passed_s
            if well_s >= ways.well_s:
                self._num_failures = 0
            hung = self._hung(quiet_s, process.loop_age_s)
            if hung is not None:
                process.tell_where()
                return hung
        return f"died ({process.how_it_ended()})"

    def _hung(self, quiet_s: float, loop_age_s: float) -> str | None:
        """How the process hangs, in words; None if it does not. Pure."""
        ways = self._ways
        if quiet_s > ways.silence_s:
            return f"hangs: it has said nothing for {ways.silence_s:g} s"
        if loop_age_s + quiet_s > ways.stuck_s:
            return f"hangs: its loop has not come by for {ways.stuck_s:g} s"
        return None

    def _fall(self, why: str) -> None:
        """The engine is down. Changes: what is open ends; perhaps it gives up.

        Clients hear only that; why is for the log, and for whoever started the server.
        """
        self._num_failures += 1
        is_last = self._num_failures >= self._ways.max_failures
        wait_s = max(1, math.ceil(self._delay_s() + self._start_s))
        self.client.disconnect(EngineDown(_DOWN, hint=_AGAIN, retry_after_s=wait_s))
        if self._process is not None:
            self._process.kill()
        if is_last:
            self._failure = self._last_error(why)
        else:
            _log.error("the engine %s; another is started in %g s", why, self._delay_s())

    def _delay_s(self) -> float:
        """Seconds before the next start. Pure."""
        doubled: float = self._ways.first_delay_s * 2 ** max(0, self._num_failures - 1)
        return min(doubled, self._ways.most_delay_s)

    def _last_error(self, why: str) -> EngineDown:
        message = (
            f"the engine failed {self._num_failures} times in a row, the last time it {why};"
            " no other is started"
        )
        return EngineDown(message, hint="the log says more; then start the server again")
