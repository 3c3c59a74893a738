"""A real engine behind HTTP: what it counts, and clients that leave when a test says so."""

from __future__ import annotations

import json
import math
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from mmserve.core import EngineConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer
from support.oracle import png

__all__ = [
    "CHAT",
    "ENDLESS",
    "Ghost",
    "Live",
    "live",
    "picture",
    "start_order",
    "strict_series",
]

CHAT = "/v1/chat/completions"
ENDLESS = 5000
"""Tokens of an answer that no test waits for."""
_LIMIT_S = 90.0


def picture(seed: int, size: int = 56) -> bytes:
    """A picture of coarse random blocks, as PNG."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return png(Image.fromarray(blocks).resize((size, size), Image.Resampling.NEAREST))


class Ghost:
    """A client that sends one streaming request, or a plain one, and may leave at any time."""

    def __init__(self, url: str, route: str, body: dict[str, Any], key: str = "") -> None:
        address, raw = urlsplit(url), json.dumps(body).encode()
        head = f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n"
        head += f"Authorization: Bearer {key}\r\n\r\n" if key else "\r\n"
        self._socket = socket.create_connection((address.hostname, address.port), _LIMIT_S)
        self._socket.sendall(head.encode() + raw)

    def fileno(self) -> int:
        """The socket's number, for `select`."""
        return self._socket.fileno()

    def read(self) -> bytes:
        """Wait for some bytes: a stream sends its first when its request has started."""
        return self._socket.recv(4096)

    def leave(self) -> None:
        """Close the connection. Idempotent."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()


class Live:
    """A server for tests that look at its queue; `key` is sent where a test names none."""

    def __init__(self, url: str, http: httpx.Client, key: str = "") -> None:
        self.url, self.http, self.key = url, http, key
        if key:
            http.headers["Authorization"] = f"Bearer {key}"

    def post(self, route: str, **fields: Any) -> httpx.Response:
        """A JSON body of these fields."""
        return self.http.post(route, json=fields)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        """A conversation of one turn, answered greedily with exactly 8 tokens."""
        return self.post(CHAT, **{**_asked(text), "max_tokens": 8, **fields})

    def ghost(
        self, text: str = "hello", *, stream: bool = True, key: str = "", **fields: Any
    ) -> Ghost:
        """Somebody who asks for an endless answer in a conversation."""
        body = {**_asked(text), "stream": stream, **fields}
        return Ghost(self.url, CHAT, body, key or self.key)

    def series(self) -> dict[str, float]:
        """Every series of the metrics page, `mmserve_` left out, as `name[label=value]`."""
        return strict_series(self.http.get("/metrics").text)

    def wait(
        self, is_so: Callable[[dict[str, float]], bool], limit_s: float = _LIMIT_S
    ) -> None:
        """Wait until it is so of the series; fail after the limit."""
        deadline = time.monotonic() + limit_s
        while not is_so(found := self.series()):
            assert time.monotonic() < deadline, {k: found[k] for k in ("running", "waiting")}
            time.sleep(0.002)

    def wait_for(self, limit_s: float = _LIMIT_S, **values: float) -> None:
        """Wait until these gauges have these values."""
        self.wait(lambda found: all(found[k] == v for k, v in values.items()), limit_s)

    def wait_idle(self, limit_s: float = _LIMIT_S) -> None:
        """Wait until nothing runs, waits or is held."""
        self.wait_for(limit_s, running=0, waiting=0, slots_held=0)


def _asked(text: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {
        "messages": messages,
        "max_tokens": ENDLESS,
        "ignore_eos": True,
        "temperature": 0,
    }


@contextmanager
def live(
    directory: Path, server: ServerConfig | None = None, **settings: Any
) -> Iterator[Live]:
    """An engine with checked ledgers and 4,096 slots, unless `settings` say otherwise."""
    http_config = server or ServerConfig(port=0)
    common = {"num_slots": 4096, "threads": 1, "verify_steps": True}
    config = EngineConfig(
        **{"model": str(directory), "served_name": "tiny", **common, **settings}
    )
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, http_config) as running,
        httpx.Client(base_url=running.url, timeout=60) as http,
    ):
        yield Live(running.url, http, http_config.api_key or "")


def strict_series(page: str) -> dict[str, float]:
    """Series of a page in Prometheus' text format, every one told once, with a finite value.

    The parser alone would let a series be there twice and a family in two places.
    """
    assert page.endswith("\n")
    for mark in ("# TYPE ", "# HELP "):
        told = [line.split(" ")[2] for line in page.splitlines() if line.startswith(mark)]
        assert len(told) == len(set(told)) > 0
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        if family.type == "histogram":
            _check_histogram(family)
            continue
        assert family.type in ("counter", "gauge")
        for sample in family.samples:
            assert sample.name.endswith("_total") == (family.type == "counter")
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            name = sample.name.removeprefix("mmserve_")
            key = f"{name}[{labels}]" if labels else name
            assert key not in found
            assert math.isfinite(sample.value)
            assert sample.value >= 0
            found[key] = sample.value
    return found


def _check_histogram(family: Metric) -> None:
    """Buckets only grow, and the last one holds what the count says."""
    last: dict[str, float] = {}
    for sample in family.samples:
        labels = str(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            assert sample.value >= last.get(labels, 0)
            last[labels] = sample.value
        elif sample.name.endswith("_count"):
            assert sample.value == last[labels]


def start_order(site: Live, asked: Sequence[dict[str, Any]]) -> list[int]:
    """In which order a server with room for one starts requests that all wait for it.

    They arrive in the order given, each as an endless stream: the one that has started is the
    one that sends, and leaves to let the next one start. So no clock decides.
    """
    with ExitStack() as stack:
        first = stack.enter_context(site.ghost("The first one holds the only place."))
        assert first.read()
        waiting: dict[Ghost, int] = {}
        for number, fields in enumerate(asked):
            waiting[stack.enter_context(site.ghost(**fields))] = number
            site.wait_for(running=1, waiting=number + 1)
        first.leave()
        order = []
        while waiting:
            (started,) = select.select(list(waiting), [], [], _LIMIT_S)[0]
            assert b"200 OK" in started.read()
            order.append(waiting.pop(started))
            started.leave()
    site.wait_idle()
    return order
