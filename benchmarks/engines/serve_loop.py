"""What a worker process does: reads requests in JSON lines, calls its engine, answers.

Runs in the engine's own environment, so it imports the standard library only. Whatever the
engine prints goes to standard error; standard output carries the answers alone. The requests
are told in `benchmarks.engines.worker`, which is the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, TextIO

__all__ = ["Command", "Engine", "answer_of", "serve"]

_READY_S = 600.0
_POLL_S = 0.2
_GRACE_S = 10.0


@dataclass(frozen=True, slots=True)
class Command:
    """How a server is started, and how one sees that it is ready.

    Args:
        words: program and arguments.
        environment: variables to set beside those of the worker.
        ready: path that answers with status 200 as soon as requests are served.
    """

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    ready: str = "/v1/models"


class Engine(Protocol):
    """One engine, as its worker file wraps it. Jobs and answers are dictionaries as sent."""

    def load(self, model: Path, threads: int, options: Mapping[str, Any]) -> str:
        """Read a model and return the engine's version. Changes: the model in memory."""

    def run(self, jobs: Sequence[Mapping[str, Any]], *, at_once: bool) -> list[dict[str, Any]]:
        """Answer jobs, in their order: one after the other, or handed over together."""

    def forget(self) -> None:
        """Empty every cache. Changes: prefixes, pictures and whatever else is kept."""

    def close(self) -> None:
        """Give the model's memory back. Idempotent."""

    def server(self, model: Path, threads: int, options: Mapping[str, Any]) -> Command | None:
        """How to serve the model at "{port}", or None if the engine has no server. Pure."""


def answer_of(
    job: Mapping[str, Any],
    token_ids: Sequence[int] | None,
    text: str,
    *,
    first_token_s: float | None,
    num_prompt_tokens: int | None,
) -> dict[str, Any]:
    """One answer as it is sent; without ids, `num_tokens` is what was asked for. Pure."""
    return {
        "id": job["id"],
        "token_ids": None if token_ids is None else [int(token) for token in token_ids],
        "text": text,
        "num_tokens": job["max_tokens"] if token_ids is None else len(token_ids),
        "first_token_s": first_token_s,
        "num_prompt_tokens": num_prompt_tokens,
    }


def serve(engine: Engine) -> None:
    """Answer requests until `quit` or the end of the input. The body of each worker."""
    signal.signal(signal.SIGTERM, _leave)
    with _own_output() as output, contextlib.closing(_Worker(engine)) as worker:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["do"] == "quit":
                _say(output, {"ok": True})
                return
            try:
                _say(output, worker.answer(asked))
            except Exception as error:  # noqa: BLE001  each engine fails in ways of its own
                _complain(error)
                _say(output, {"ok": False, "reason": _first_line(error)})


@contextlib.contextmanager
def _own_output() -> Iterator[TextIO]:
    """Standard output for answers alone; engines and their children print to the log."""
    own = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(own, "w", encoding="utf-8") as output:
        yield output


def _say(output: TextIO, value: Mapping[str, Any]) -> None:
    output.write(json.dumps(value) + "\n")
    output.flush()


def _complain(error: Exception) -> None:
    import traceback  # noqa: PLC0415  for failures alone

    traceback.print_exception(error, file=sys.stderr)
    sys.stderr.flush()


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


def _leave(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  as signals call it
    raise SystemExit(128 + number)


class _Worker:
    """An engine with what was loaded last and the server started last."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loaded: tuple[Path, int, Mapping[str, Any]] | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def answer(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one request but `quit`. Raises what the engine raises."""
        if asked["do"] == "load":
            return self._load(asked)
        if asked["do"] == "run":
            start = time.perf_counter()
            answers = self._engine.run(asked["jobs"], at_once=asked["at_once"])
            return {"ok": True, "seconds": time.perf_counter() - start, "answers": answers}
        if asked["do"] == "forget":
            self._engine.forget()
            return {"ok": True}
        if asked["do"] == "serve":
            return self._serve()
        message = f"no request is called {asked['do']!r}"
        raise ValueError(message)

    def _load(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Read the model, or with the option `serve_only` leave that to the server."""
        self._stop()
        self._engine.close()
        options = dict(asked["options"])
        serves_only = bool(options.pop("serve_only", False))
        self._loaded = Path(asked["model"]), int(asked["threads"]), options
        start = time.perf_counter()
        version = "" if serves_only else self._engine.load(*self._loaded)
        return {"ok": True, "seconds": time.perf_counter() - start, "version": version}

    def _serve(self) -> dict[str, Any]:
        """Start the engine's own server in place of the model in this process."""
        if self._loaded is None:
            message = "load a model first"
            raise ValueError(message)
        command = self._engine.server(*self._loaded)
        if command is None:
            message = "this engine has no server"
            raise ValueError(message)
        self._engine.close()
        port = _free_port()
        words = [word.replace("{port}", str(port)) for word in command.words]
        settings = [f"{name}={value}" for name, value in command.environment.items()]
        # its own stdin: a server must not read requests that are meant for the worker
        self._server = subprocess.Popen(["env", *settings, *words], stdin=subprocess.DEVNULL)
        address = f"http://127.0.0.1:{port}"
        _wait_until_ready(self._server, address + command.ready)
        return {"ok": True, "url": address}

    def _stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.terminate()
        try:
            server.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()

    def close(self) -> None:
        """End the server and give the model back. Idempotent."""
        self._stop()
        self._engine.close()


def _free_port() -> int:
    """A port that nobody listens on; somebody else may take it before the server does."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Raises RuntimeError if the server ends, TimeoutError if it is not ready in time."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            message = f"the server ended with status {server.returncode}; its log says why"
            raise RuntimeError(message)
        if _answers(url):
            return
        time.sleep(_POLL_S)
    message = f"the server was not ready after {_READY_S:g} s"
    raise TimeoutError(message)


def _answers(url: str) -> bool:
    """Whether a server answers with status 200."""
    try:
        with urllib.request.urlopen(url, timeout=5.0) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
