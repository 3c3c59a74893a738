"""`mmserve serve` as a process of its own, for as long as tests need it."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

__all__ = ["NotServed", "serving"]

_READY_S = 180.0
_STOP_S = 20.0


class NotServed(Exception):
    """The server ended, or did not get ready; the message ends with what it last said."""


@contextmanager
def serving(model: str, log: Path) -> Iterator[str]:
    """The address of a server that answers /health; it is stopped after the block.

    What it prints goes to `log`. Raises NotServed.
    """
    port = _free_port()
    command = [sys.executable, "-m", "mmserve", "serve", "--model", model]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (
        log.open("w") as file,
        subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process,
    ):
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            yield url
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        if process.poll() is not None:
            raise NotServed(f"the server ended with {process.returncode}: {_last(log)}")
        try:
            answer = httpx.get(f"{url}/health", timeout=5, trust_env=False)
            if answer.status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise NotServed(f"the server was not ready after {_READY_S:.0f} s: {_last(log)}")


def _last(log: Path) -> str:
    return " ".join(log.read_text().split())[-500:]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
