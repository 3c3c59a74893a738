"""A server of ours, started by a program and gone with it.

    with sgl.Runtime(model_path="tabletop") as runtime:     this process
        f.run(..., backend=runtime)                           | HTTP          | pipe
                                                            mmserve serve --port 0

The server picks its port and says it; it ends with `shutdown`, with the object, or with this
process, even if that is killed.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from types import TracebackType
from typing import IO, Self

from mmserve.core import (
    BackendFailed,
    BadRequest,
    EngineConfig,
    ImagePart,
    MediaConfig,
    MmserveError,
    Request,
    SchedConfig,
    ServerConfig,
    VideoPart,
)
from mmserve.lang.backends.abilities import Abilities
from mmserve.lang.backends.endpoint import RuntimeEndpoint
from mmserve.lang.backends.port import Call, Scores

__all__ = ["Runtime", "serve_flags"]

_ADDRESS = re.compile(r"\bon\s+(http://\S+:\d+),\s+Ctrl-C")
_ANY_HOST = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
_TAIL_LINES = 40
_PAUSE_S = 0.05
_PATIENCE_S = 10.0
_WRONG_USE = 2
_OK = 200
_LOUD = ("debug", "info")
_LOG_LEVELS = ("debug", "info", "warning", "error", "critical")


class Runtime:
    """A server process with one model, and a backend that asks it.

    Args:
        model_path: directory, .gguf file, or embedded name.
        host: address that the server listens on.
        port: None lets the server pick a free one.
        launch_timeout_s: longest wait for it to be ready, in seconds.
        log_level: "debug" and "info" show the server's output on standard error; otherwise
            its last lines are told if it fails.
        **settings: flags of `mmserve serve` by their names, underscores for dashes.

    Returns when the server answers. Raises BadRequest if `serve` refuses a flag or a value, and
    BackendFailed if it ends or is not ready in time. Changes: starts a process. An `api_key` is
    a flag like the others, and so stands in this machine's list of processes.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] = "tabletop",
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        launch_timeout_s: float = 300.0,
        log_level: str = "error",
        **settings: object,
    ) -> None:
        if log_level not in _LOG_LEVELS:
            message = f"log_level is {log_level!r}, allowed are {', '.join(_LOG_LEVELS)}"
            raise BadRequest(message, field="log_level", reason="value")
        if "model" in settings:
            message = "model is given, a Runtime takes model_path"
            raise BadRequest(message, field="model", reason="name")
        own = {"model": os.fspath(model_path), "host": host, "port": port or 0, "drain_s": 0}
        process = _started(serve_flags({**own, **settings}))
        self._stop = weakref.finalize(self, _stop, process, os.getpid())
        deadline = time.monotonic() + launch_timeout_s
        output = _Output(process, is_shown=log_level in _LOUD)
        try:
            self._url = output.address(deadline)
            api_key = settings.get("api_key")
            self._endpoint = RuntimeEndpoint(self._url, str(api_key) if api_key else None)
            output.wait_until_ready(self._url, deadline)
        except BaseException:
            self.shutdown()
            raise

    @property
    def url(self) -> str:
        """The server's address, without a slash at the end. Pure."""
        return self._url

    @property
    def endpoint(self) -> RuntimeEndpoint:
        """The backend that asks the server. Pure."""
        return self._endpoint

    def shutdown(self) -> None:
        """End the server and wait until it has ended. Idempotent. Changes: the process."""
        self._stop()
        if (endpoint := getattr(self, "_endpoint", None)) is not None:
            endpoint.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- the port of a backend ---------------------------------------------------------------

    @property
    def name(self) -> str:
        """The server's address."""
        return self._endpoint.name

    @property
    def abilities(self) -> Abilities:
        """Everything."""
        return self._endpoint.abilities

    def start(self, request: Request) -> Call:
        """See `RuntimeEndpoint.start`."""
        return self._live().start(request)

    def prepare(self, part: ImagePart | VideoPart, cache_salt: str) -> None:
        """See `RuntimeEndpoint.prepare`."""
        self._live().prepare(part, cache_salt)

    def score(
        self, request: Request, options: Sequence[str], hold: Callable[[Call], None]
    ) -> Scores:
        """See `Backend.score`."""
        return self._live().score(request, options, hold)

    def flush_cache(self) -> bool:
        """Forget the server's cached prefixes; False if calls under way forbid it."""
        return self._live().flush_cache()

    def server_info(self) -> dict[str, object]:
        """What the server says about itself."""
        return self._live().server_info()

    def _live(self) -> RuntimeEndpoint:
        if not self._stop.alive:
            message = f"the server at {self._url} was shut down"
            raise BackendFailed(message, status=None, hint="start another Runtime")
        return self._endpoint


def serve_flags(settings: Mapping[str, object]) -> list[str]:
    """Flags of `mmserve serve` for settings by name.

    None is left out, and so is a switch as it stands by default; a list gives its flag once an
    item, a pair is `name=value`. Unknown names become flags too, which `serve` refuses. Pure.
    """
    flags: list[str] = []
    switches = _switches()
    for name, value in settings.items():
        if value is None or (isinstance(value, bool) and value is switches.get(name)):
            continue
        word = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{word}" if value else f"--no-{word}")
            continue
        for item in _items(value):
            text = "=".join(map(str, item)) if isinstance(item, tuple) else str(item)
            flags.append(f"--{word}={text}")
    return flags


def _items(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.items())
    return list(value) if isinstance(value, (list, tuple, set, frozenset)) else [value]


def _switches() -> dict[str, bool]:
    kinds = (EngineConfig, SchedConfig, MediaConfig, ServerConfig)
    specs = [spec for kind in kinds for spec in fields(kind)]
    return {
        spec.name: spec.default
        for spec in specs
        if spec.default is not MISSING and isinstance(spec.default, bool)
    }


# -- the process -----------------------------------------------------------------------------


def _started(flags: list[str]) -> subprocess.Popen[str]:
    # A session of its own, so that Ctrl-C in a terminal ends calls, not the server under them.
    return subprocess.Popen(
        [sys.executable, "-m", "mmserve.lang.lifeline", "serve", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[str], owner: int) -> None:
    # A forked copy of the owner must not end the owner's server when it ends itself.
    if os.getpid() != owner:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


class _Output:
    """What the server prints, read by a thread of its own until it ends. Mutable."""

    def __init__(self, process: subprocess.Popen[str], *, is_shown: bool) -> None:
        self._process = process
        self._is_shown = is_shown
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._news = threading.Condition()
        self._has_ended = False
        threading.Thread(target=self._read, name="mmserve-runtime", daemon=True).start()

    def _read(self) -> None:
        stream: IO[str] | None = self._process.stdout
        assert stream is not None  # noqa: S101  asked for
        with stream:
            for line in stream:
                if self._is_shown:
                    sys.stderr.write(line)
                with self._news:
                    self._lines.append(line)
                    self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def address(self, deadline: float) -> str:
        """The address that the server says it has. Waits. Raises as `Runtime`."""
        with self._news:
            while (told := _ADDRESS.search("".join(self._lines))) is None:
                left_s = deadline - time.monotonic()
                if self._has_ended or left_s <= 0:
                    break
                self._news.wait(left_s)
        if told is None:
            raise self._failure()
        url = told[1]
        host = url.removeprefix("http://").rpartition(":")[0]
        return url.replace(host, _ANY_HOST.get(host, host), 1)

    def wait_until_ready(self, url: str, deadline: float) -> None:
        """Wait until the server says that it is healthy. Raises as `Runtime`."""
        import httpx  # noqa: PLC0415  slow to import, and engines in this process do without

        with httpx.Client(trust_env=False, timeout=_PATIENCE_S) as http:
            while self._process.poll() is None and time.monotonic() < deadline:
                with contextlib.suppress(httpx.HTTPError):
                    if http.get(f"{url}/health").status_code == _OK:
                        return
                time.sleep(_PAUSE_S)
        raise self._failure()

    def _failure(self) -> MmserveError:
        """The error of a server that has ended, or was not ready in time."""
        if self._has_ended:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_PATIENCE_S)
        code = self._process.poll()
        with self._news:
            tail = "".join(self._lines).strip() or "it said nothing"
        if code is None:
            return BackendFailed(f"the server was not ready in time: {tail}", status=None)
        if code == _WRONG_USE:
            message = f"mmserve serve refuses its settings: {tail}"
            return BadRequest(message, field="settings", reason="value")
        return BackendFailed(f"the server ended with code {code}: {tail}", status=None)
