"""`mmserve serve` as a process of its own: its address, series, memory, and its engine."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import psutil  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families

from mmserve.core import series_key

__all__ = ["ServeProcess"]

_READY_S = 300.0
_IDLE_S = 120.0
_STOP_S = 20.0
_URL = re.compile(r"http://[0-9.]+:[0-9]+")
_MIB = 1 << 20


class ServeProcess:
    """A server on a free port, from entering to leaving the block.

    Args:
        flags: of `mmserve serve`, beside the port.

    Raises SystemExit with the server's last words if it does not get ready.
    """

    def __init__(self, flags: Sequence[str] = ()) -> None:
        self._words = [sys.executable, "-m", "mmserve", "serve", "--port", "0", *flags]
        self._folder = tempfile.TemporaryDirectory(prefix="mmserve-load-")
        self._log = Path(self._folder.name) / "log"
        self.url = ""

    def __enter__(self) -> Self:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=subprocess.STDOUT)
        self._root = psutil.Process(self._process.pid)
        end = time.monotonic() + _READY_S
        while time.monotonic() < end and self._process.poll() is None:
            found = _URL.search(self._log.read_text())
            if found is not None and self.is_ready(found.group()):
                self.url = found.group()
                return self
            time.sleep(0.1)
        self.__exit__(None, None, None)
        raise SystemExit("the server did not get ready")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None or self._process.poll() is not None:
            print(self._log.read_text()[-3000:], file=sys.stderr)
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def is_ready(self, url: str = "") -> bool:
        """Whether /health says so."""
        try:
            answer = httpx.get(f"{url or self.url}/health", timeout=10, trust_env=False)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK

    def wait_ready(self) -> float:
        """Seconds until /health says that it is ready."""
        start = time.monotonic()
        while not self.is_ready():
            if time.monotonic() - start > _READY_S:
                return float("inf")
            time.sleep(0.05)
        return time.monotonic() - start

    def series(self) -> dict[str, float]:
        """All series of /metrics, `mmserve_` left out, by `series_key`."""
        page = httpx.get(f"{self.url}/metrics", timeout=60, trust_env=False).text
        return {
            series_key(sample.name.removeprefix("mmserve_"), **sample.labels): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    def wait_idle(self) -> dict[str, float]:
        """The series once nothing runs, waits or is held, or after two minutes."""
        end = time.monotonic() + _IDLE_S
        while True:
            found = self.series()
            busy = sum(found.get(name, 0) for name in ("running", "waiting", "slots_held"))
            if not busy or time.monotonic() > end:
                return found
            time.sleep(0.05)

    def resident_mib(self) -> float:
        """Resident memory of the server and all processes that it has started."""
        total = 0
        for process in self._family():
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total / _MIB

    def engine(self) -> psutil.Process | None:
        """The process that computes: a child that has loaded torch, or None."""
        for process in self._family()[1:]:
            try:
                if any("libtorch" in part.path for part in process.memory_maps()):
                    return process
            except psutil.Error:
                continue
        return None

    def _family(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]
