"""Hosts that do not answer hold up those who ask for them, and nobody else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from plan.vision.conftest import LocalServer
from support.oracle import Asker, image_part
from whole.cases.test_media_security import PICTURE, QUESTION, serving

from mmserve.engine import fetching


class SilentHost:
    """Takes connections, and answers them with a picture once it is released."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._changed = threading.Condition()
        self._waiting: list[socket.socket] = []
        self._is_released = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def url(self, number: int) -> str:
        """One of its addresses."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}/{number}.png"

    def until_asked(self, num: int) -> None:
        """Wait for so many connections."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._waiting) >= num, 30)

    def release(self) -> None:
        """Answer all who wait, and all to come."""
        with self._changed:
            self._is_released = True
            waiting, self._waiting = self._waiting, []
        for connection in waiting:
            self._answer(connection)

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._take(self._listener.accept()[0])

    def _take(self, connection: socket.socket) -> None:
        with self._changed:
            if not self._is_released:
                self._waiting.append(connection)
                self._changed.notify_all()
                return
        self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(PICTURE)}\r\n\r\n".encode()
        with connection, contextlib.suppress(OSError):
            connection.sendall(head + PICTURE)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(4096):
                pass


@pytest.fixture(scope="module")
def patient(tiny_directory: Path) -> Iterator[Asker]:
    """A server that waits long for a host."""
    with serving(tiny_directory, allow_private_hosts=True, fetch_timeout_s=300.0) as asker:
        yield asker


@pytest.fixture
def silent() -> Iterator[SilentHost]:
    """A host that answers when it is released."""
    host = SilentHost()
    with contextlib.closing(host):
        yield host


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads for those who wait."""
    with ThreadPoolExecutor(16) as threads:
        yield threads


def post(ask: Asker, url: str) -> httpx.Response:
    """A question about a picture, on a connection of its own."""
    content = [image_part(url), {"type": "text", "text": QUESTION}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    return httpx.post(f"{ask.url}/v1/chat/completions", json=body, timeout=300.0)


def statuses(futures: list[Future[httpx.Response]]) -> list[int]:
    """What became of them."""
    return [future.result().status_code for future in futures]


def test_a_silent_host_holds_nobody_else_up(
    patient: Asker, silent: SilentHost, threads: ThreadPoolExecutor
) -> None:
    """While sixteen wait for it, media in requests and of other hosts are answered."""
    other = LocalServer()
    other.pages["/a.png"] = (200, {}, PICTURE)
    with contextlib.closing(other):
        waiting = [threads.submit(post, patient, silent.url(number)) for number in range(16)]
        try:
            silent.until_asked(6)
            near = [patient.chat(PICTURE, QUESTION).status for _ in range(30)]
            far = post(patient, other.url("/a.png", host="localhost"))
            still_waiting = [not future.done() for future in waiting]
        finally:
            silent.release()
        assert near == [200] * 30
        assert far.status_code == 200
        assert still_waiting == [True] * 16
        assert statuses(waiting) == [200] * 16


def test_too_many_who_wait_are_told_to_come_later(
    patient: Asker, silent: SilentHost, threads: ThreadPoolExecutor, monkeypatch
) -> None:
    """With 429, when, and the way out; those who were taken are answered."""
    waiting = [threads.submit(post, patient, silent.url(number)) for number in range(6)]
    silent.until_asked(6)
    monkeypatch.setattr(fetching, "_MAX_WAITING_FOR_A_HOST", 0)
    try:
        refused = post(patient, silent.url(6))
        near = patient.chat(PICTURE, QUESTION).status
    finally:
        silent.release()
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert "127.0.0.1" in refused.json()["error"]["message"]
    assert near == 200
    assert statuses(waiting) == [200] * 6
