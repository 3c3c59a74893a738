"""The engine process: opens an engine and serves what comes over the wire.

    main thread     reads messages: submits, cancels, hands calls to threads
    event loop      follows every ticket, and alone writes; while the other side does not read,
                    tickets keep the news and join them
    beat thread     asks the engine's loop for a sign, and says how old the last one is

Ends on `Close`, and at once when the other side is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

from mmserve.core import Client, EngineConfig, MmserveError, Release, Ticket
from mmserve.engine.remote.calls import answer, as_ours
from mmserve.engine.remote.messages import (
    Beat,
    Call,
    Cancel,
    Close,
    EndHold,
    Failed,
    Hold,
    Message,
    NotOpened,
    Open,
    Prepare,
    Ready,
    Submit,
    Told,
)
from mmserve.engine.remote.wire import Wire

__all__ = ["Host", "Opened", "main", "open_engine", "run"]

_CALL_THREADS = 16
_LAST_WORDS_S = 2.0
_log = logging.getLogger(__name__)

Pulse = Callable[[], "Future[None]"]
Opened = tuple[Client, Pulse]
OpenClient = Callable[[EngineConfig], AbstractContextManager[Opened]]


class Host:
    """Serves one client over one wire. Mutable: the tickets under way.

    Args:
        client: whose answers they are.
        wire: to the other side.
        pulse: a future that is done when the client's loop next comes by.
        beat_s: time between two signs of life, in seconds.
    """

    def __init__(self, client: Client, wire: Wire, pulse: Pulse, beat_s: float) -> None:
        self._client = client
        self._wire = wire
        self._pulse = pulse
        self._beat_s = beat_s
        self._tickets: dict[int, Ticket] = {}
        self._holds: dict[int, Release] = {}
        self._pending: list[Message] = []
        self._followers: set[asyncio.Task[None]] = set()
        self._is_over = threading.Event()
        self._events = asyncio.new_event_loop()
        self._calls = ThreadPoolExecutor(_CALL_THREADS, thread_name_prefix="mmserve-call")
        self._writer = threading.Thread(
            target=self._events.run_forever, name="mmserve-wire", daemon=True
        )
        self._beater = threading.Thread(target=self._beat, name="mmserve-beat", daemon=True)

    def serve(self) -> None:
        """Serve until told to close. Raises EOFError when the other side is gone."""
        self._writer.start()
        self._say(Ready(self._client.model))
        self._beater.start()
        try:
            while True:
                for message in self._wire.receive():
                    if isinstance(message, Close):
                        return
                    self._take(message)
        finally:
            self._is_over.set()

    def stop(self, patience_s: float = _LAST_WORDS_S) -> None:
        """Say what is left to say, then stop writing. Call it when the client is closed."""
        self._is_over.set()
        self._calls.shutdown(wait=False, cancel_futures=True)
        last = asyncio.run_coroutine_threadsafe(self._last_words(), self._events)
        with contextlib.suppress(TimeoutError):
            last.result(patience_s)
        self._events.call_soon_threadsafe(self._events.stop)
        self._writer.join(patience_s)
        if not self._writer.is_alive():
            self._events.close()

    # --- reading ---------------------------------------------------------------------------

    def _take(self, message: Message) -> None:
        match message:
            case Submit(number, request):
                ticket = self._client.submit(request)
                self._tickets[number] = ticket
                self._events.call_soon_threadsafe(self._follow, number, ticket)
            case Cancel(number):
                if (ticket := self._tickets.get(number)) is not None:  # type: ignore[assignment]
                    ticket.cancel()
            case Prepare(part, cache_salt, client):
                self._client.prepare(part, cache_salt=cache_salt, client=client)
            case Hold(number, part, cache_salt):
                self._holds[number] = self._client.hold(part, cache_salt=cache_salt)
            case EndHold(number):
                self._holds.pop(number)()
            case _ if isinstance(message, Call):
                self._calls.submit(self._answer, message)
            case _:
                raise TypeError(f"a {type(message).__name__} is not for the engine")

    def _answer(self, call: Call) -> None:
        self._say(answer(self._client, call))

    # --- following tickets, on the event loop ------------------------------------------------

    def _follow(self, number: int, ticket: Ticket) -> None:
        follower = self._events.create_task(self._tell(number, ticket))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _tell(self, number: int, ticket: Ticket) -> None:
        try:
            self._queue(Told(number, await ticket.report_async()))
            async for output in ticket.outputs_async():
                self._queue(Told(number, output))
        except Exception as error:  # noqa: BLE001 - whoever reads the request must hear of it
            self._queue(Failed(number, as_ours(error)))
        finally:
            self._tickets.pop(number, None)

    async def _last_words(self) -> None:
        await asyncio.gather(*self._followers, return_exceptions=True)

    # --- writing -----------------------------------------------------------------------------

    def _say(self, message: Message) -> None:
        """Queue a message, from any thread."""
        with contextlib.suppress(RuntimeError):  # after `stop`, nobody listens any more
            self._events.call_soon_threadsafe(self._queue, message)

    def _queue(self, message: Message) -> None:
        """Put a message into the next frame, which leaves when this turn of the loop ends."""
        self._pending.append(message)
        if len(self._pending) == 1:
            self._events.call_soon(self._flush)

    def _flush(self) -> None:
        messages, self._pending = self._pending, []
        with contextlib.suppress(OSError):  # the reader sees that the other side is gone
            self._wire.send(messages, self._on_bad)

    def _on_bad(self, message: Message, error: Exception) -> None:
        if isinstance(message, Told):
            self._queue(Failed(message.number, as_ours(error)))
            if (ticket := self._tickets.get(message.number)) is not None:
                ticket.cancel()

    # --- signs of life -----------------------------------------------------------------------

    def _beat(self) -> None:
        sign, asked_at = self._pulse(), time.monotonic()
        while not self._is_over.wait(self._beat_s):
            now = time.monotonic()
            if not sign.done():
                self._say(Beat(now - asked_at))
                continue
            if (error := sign.exception()) is not None:
                self._give_up(error)
                return
            self._say(Beat(0.0))
            sign, asked_at = self._pulse(), now

    def _give_up(self, error: BaseException) -> None:
        """The engine's loop has stopped for good: another process can do better."""
        _log.error("the engine's loop has stopped, its process ends: %s", error)
        self.stop()
        self._wire.close()


@contextlib.contextmanager
def open_engine(config: EngineConfig) -> Iterator[Opened]:
    """An engine and its pulse. Cost: loads torch and the model."""
    from mmserve.engine.engine import Engine  # noqa: PLC0415 - after the watch has begun

    with Engine.from_config(config) as engine:
        gc.collect()
        gc.freeze()  # else a full collection walks all of torch between two steps
        yield engine, engine.pulse


def run(wire: Wire, open_client: OpenClient = open_engine) -> int:
    """Open what the first message names, and serve it; the exit code of the process."""
    with contextlib.suppress(EOFError), contextlib.ExitStack() as opened:
        (opening,) = wire.receive()
        if not isinstance(opening, Open):
            raise TypeError("the first message does not open an engine")
        try:
            client, pulse = opened.enter_context(open_client(opening.config))
        except (MmserveError, OSError) as error:
            wire.send([NotOpened(error)])
            return 1
        host = Host(client, wire, pulse, opening.beat_s)
        host.serve()
        opened.close()
        host.stop()
        return 0
    return 1


def main(descriptor: int, open_client: OpenClient = open_engine) -> None:
    """Be the engine process of whoever holds the other end of a socket; ends the process.

    SIGUSR1 prints where every thread is.
    """
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    end = socket.socket(fileno=descriptor)
    end.set_inheritable(False)
    threading.Thread(target=_watch, args=(end,), name="mmserve-watch", daemon=True).start()
    code = 1
    try:
        code = run(Wire(end), open_client)
    except Exception:  # noqa: BLE001 - the process ends with it
        _log.exception("the engine process has failed")
    finally:
        logging.shutdown()
        os._exit(code)  # whatever threads still wait for


def _watch(end: socket.socket) -> None:
    """End the process as soon as nobody holds the other end, whatever else goes on."""
    poll = select.poll()
    poll.register(end, 0)
    poll.poll()
    os._exit(1)
