"""Picture hosts that are slow, dead or without an end, and what they cost others' requests.

    slow      a byte of the picture now and then
    dead      takes the connection and never answers
    endless   sends and sends

Rounds with and without callers who name such addresses take turns; in each, the same number of
short questions about new pictures is asked, a few at once. The ratio compares medians.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.serve_asks import Ask, Shown, scenes
from benchmarks.serve_calls import CHAT, Ended, play_closed
from benchmarks.serve_process import ServeProcess

__all__ = ["WAYS", "hosts_rows", "hosts_summary"]

WAYS = ("slow", "dead", "endless")
_AT_ONCE = 4
_PAUSE_S = 0.25
_PIECE = b"\x00" * 16_384
_FLAGS = ("--allow-private-hosts", "--fetch-timeout-s", "4")
_FIRST = 60_000


class _Handler(BaseHTTPRequestHandler):
    """Answers by the path, in one of three bad ways, until the server ends."""

    def do_GET(self) -> None:
        is_over: threading.Event = self.server.is_over  # type: ignore[attr-defined]
        way = self.path.split("/")[1]
        with contextlib.suppress(OSError):
            if way != "dead":
                self.send_response(200)
                self.send_header("Content-Type", "image/png")
                self.end_headers()
            pause_s = 0.005 if way == "endless" else _PAUSE_S
            while not is_over.wait(pause_s):
                if way != "dead":
                    self.wfile.write(_PIECE if way == "endless" else _PIECE[:1])

    def log_message(self, *args: object) -> None:
        """Nothing is said."""


@contextmanager
def _bad_hosts() -> Iterator[str]:
    """The address of a server with all three ways."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.block_on_close = False
    server.is_over = threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.is_over.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()


class _Victims(threading.Thread):
    """Callers who name bad addresses again and again, from a thread of their own."""

    def __init__(self, url: str, hosts: str, count: int) -> None:
        super().__init__(daemon=True)
        self.statuses: list[int] = []
        self._url, self._hosts, self._count = url, hosts, count
        self._is_over = threading.Event()

    def run(self) -> None:
        """Ask until told to stop."""
        asyncio.run(self._ask_all())

    def stop(self) -> None:
        """Ask no more; those under way end by the server's own limit."""
        self._is_over.set()
        self.join()

    async def _ask_all(self) -> None:
        async with httpx.AsyncClient(
            base_url=self._url, timeout=120, limits=httpx.Limits(max_connections=None)
        ) as http:
            await asyncio.gather(*(self._ask_on(http, k) for k in range(self._count)))

    async def _ask_on(self, http: httpx.AsyncClient, number: int) -> None:
        turn = 0
        while not self._is_over.is_set():
            way = WAYS[number % len(WAYS)]
            address = f"{self._hosts}/{way}/{number}/{turn}.png"
            body = Shown(address, "What is this?").body(max_tokens=4)
            self.statuses.append((await http.post(CHAT, json=body)).status_code)
            turn += 1


def hosts_rows(*, repeats: int, num_asked: int, num_victims: int) -> list[dict[str, Any]]:
    """A row a round: latencies of the good requests in milliseconds, and the bad ones' ends."""
    rows = []
    pool = scenes((2 * repeats + 1) * num_asked, _FIRST)
    firsts = list({one.picture: one for one in reversed(pool)}.values())  # the short questions
    with ServeProcess(_FLAGS) as server, _bad_hosts() as hosts:
        _round(server, [firsts.pop() for _ in range(num_asked)])  # the first calls take longer
        for number in range(2 * repeats):
            has_bad = number % 2 == 1
            batch = [firsts.pop() for _ in range(num_asked)]
            with ExitStack() as stack:
                victims = None
                if has_bad:
                    victims = _Victims(server.url, hosts, num_victims)
                    victims.start()
                    stack.callback(victims.stop)
                    time.sleep(0.5)
                ended = _round(server, batch)
            statuses = victims.statuses if victims is not None else []
            rows.append(_row(number, ended, statuses, has_bad=has_bad))
    return rows


def _round(server: ServeProcess, shown: Sequence[Shown]) -> list[Ended]:
    asks = [Ask("answered", one.body(stream=True), one.truth) for one in shown]
    return play_closed(server.url, asks, _AT_ONCE)


def _row(
    number: int, ended: Sequence[Ended], statuses: Sequence[int], *, has_bad: bool
) -> dict[str, Any]:
    times = [one.end_s * 1e3 for one in ended]
    first = [one.first_s * 1e3 for one in ended if one.first_s is not None]
    return {
        "measured": "hosts",
        "round": number,
        "bad_hosts": has_bad,
        "failed": sum(not one.is_clean for one in ended),
        "ttft_p50_ms": median(first),
        "e2e_p50_ms": median(times),
        "e2e_p90_ms": float(np.percentile(times, 90)),
        "bad_calls": len(statuses),
        "bad_calls_without_4xx": sum(not 400 <= status < 500 for status in statuses),
    }


def hosts_summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Latency beside bad hosts over latency without, median of the rounds each. Pure."""
    found: dict[str, float] = {}
    for column, name in (
        ("e2e_p50_ms", "bad_hosts_latency_ratio"),
        ("ttft_p50_ms", "bad_hosts_ttft_ratio"),
        ("e2e_p90_ms", "bad_hosts_p90_ratio"),
    ):
        with_bad = median(row[column] for row in rows if row["bad_hosts"])
        without = median(row[column] for row in rows if not row["bad_hosts"])
        found[name] = with_bad / without
    found["bad_hosts_wrong"] = sum(row["failed"] + row["bad_calls_without_4xx"] for row in rows)
    return found
