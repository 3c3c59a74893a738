"""The app on a socket: for good, or in a thread for as long as a test or tool needs it."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Self

import uvicorn
from starlette.datastructures import State

from mmserve.core import Broken, Client, ServerConfig
from mmserve.server.app import create_app
from mmserve.server.calls import Calls
from mmserve.server.conversation_store import ConversationStore
from mmserve.server.errors import shutting_down
from mmserve.server.file_store import FileStore
from mmserve.server.watch.lines import log_to_stderr

if TYPE_CHECKING:
    from mmserve.server.watch.tracing import Tracing

__all__ = ["RunningServer", "serve"]

_KEEP_ALIVE_S = 60
_GRACE_S = 3
_LAST_WORDS_S = 1.0
_POLL_S = 0.02
_START_TIMEOUT_S = 20.0


def serve(
    client: Client,
    config: ServerConfig,
    on_ready: Callable[[str], None] | None = None,
    is_over: Callable[[], bool] | None = None,
    on_forced: Callable[[], None] | None = None,
) -> None:
    """Serve until a signal ends it; `on_ready` is told the address once the port is taken.

    The first SIGTERM or SIGINT lets open calls end, for `config.drain_s` seconds; the second
    ends them. It also ends when `is_over`, which is asked ten times a second. `on_forced` is
    called where calls must end whatever the engine does: at a second signal, or when they do
    not end though they were aborted. The client stays open; whoever made it closes it. Raises
    Broken if the port is not free, and KeyboardInterrupt after SIGINT.
    """
    with _listen(config) as listener:
        server = _uvicorn(client, config)
        if on_ready is not None:
            on_ready(_url(listener))
        server.is_over = is_over or server.is_over
        server.on_forced = on_forced or server.on_forced
        with log_to_stderr(config.log_format):
            server.run(sockets=[listener])


class RunningServer:
    """A server in a thread, on a free port if the config names port 0.

    with RunningServer(client) as server:
        httpx.get(server.url + "/health")
    """

    def __init__(self, client: Client, config: ServerConfig | None = None) -> None:
        self._config = config or ServerConfig(port=0)
        self._server = _uvicorn(client, self._config)
        self._listener = _listen(self._config)
        self._url = _url(self._listener)
        self._thread = threading.Thread(
            target=self._server.run,
            kwargs={"sockets": [self._listener]},
            name="mmserve-http",
            daemon=True,
        )

    @property
    def url(self) -> str:
        """The server's address, without a slash at the end. Pure."""
        return self._url

    def __enter__(self) -> Self:
        self._thread.start()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Broken("the HTTP server did not start")
            time.sleep(0.005)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


class _Server(uvicorn.Server):
    """uvicorn's server, which tells those it still answers why it leaves them."""

    def __init__(self, settings: uvicorn.Config, state: State, drain_s: float) -> None:
        super().__init__(settings)
        self.is_over: Callable[[], bool] = lambda: False
        self.on_forced: Callable[[], None] = lambda: None
        self._calls: Calls = state.calls
        self._stores: tuple[FileStore, ConversationStore] = (state.files, state.conversations)
        self._tracing: Tracing | None = state.tracing
        self._drain_s = drain_s
        self._drained_at: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal, end at the second. Changes: no call is opened any more."""
        if sig == signal.SIGINT:
            self._captured_signals.append(sig)  # uvicorn raises it again, when all is over
        if self._drained_at is None:
            self._drained_at = time.monotonic() + self._drain_s
            self._calls.refuse_new(shutting_down())
        else:
            self.should_exit = self.force_exit = True

    async def on_tick(self, counter: int) -> bool:
        """What uvicorn does ten times a second. Changes: what has expired is gone."""
        for store in self._stores:
            store.sweep()
        if self.is_over() or self._is_drained():
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Changes: open calls end with an error, then the connections close."""
        self._calls.fail_all(shutting_down())
        patience_s = 0.0 if self.force_exit else _LAST_WORDS_S
        deadline = time.monotonic() + patience_s
        while self._calls.num_open and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
        if self.force_exit or self._calls.num_open:
            await asyncio.to_thread(self.on_forced)  # else what waits for the engine would stay
        await super().shutdown(sockets)
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _is_drained(self) -> bool:
        """Whether the server was told to end, and need not wait for calls any more. Pure."""
        if self._drained_at is None:
            return False
        return not self._calls.num_open or time.monotonic() >= self._drained_at


def _listen(config: ServerConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio turns Nagle's delay off only where the protocol is named
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
    except (OSError, OverflowError) as error:  # a port above 65535 overflows
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "ports are 0 to 65535"
        message = f"cannot listen on {config.host} port {config.port}: {reason}"
        raise Broken(message, hint="choose another --port") from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _uvicorn(client: Client, config: ServerConfig) -> _Server:
    app = create_app(client, config)
    settings = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
    )
    return _Server(settings, app.state, config.drain_s)
