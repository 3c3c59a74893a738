"""Servers that were lost are asked for their health until they are well again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from mmserve.batch.remote.board import Board
from mmserve.core import MmserveError

__all__ = ["Watch"]

_MOST_S = 30.0
_GROWTH = 2.0


class Watch:
    """A thread that probes servers which are out, each with a growing pause; close it.

    Args:
        board: says who is out, and is told who is back.
        probe: raises if the server of this address is not ready.
        first_s: seconds before the first probe of a lost server; doubled after each, up to 30.
        on_back: told the address of a server that answers again.
    """

    def __init__(
        self,
        board: Board,
        probe: Callable[[str], None],
        *,
        first_s: float = 0.5,
        on_back: Callable[[str], None] = lambda _url: None,
    ) -> None:
        self._board = board
        self._probe = probe
        self._first_s = first_s
        self._on_back = on_back
        self._wake = threading.Event()
        self._is_over = False
        self._due: dict[str, tuple[float, float]] = {}  # when to probe, and the pause after
        self._thread = threading.Thread(target=self._run, name="mmserve-watch", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """A server has been taken out. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        """End the thread; a probe under way is waited for. Idempotent."""
        self._is_over = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over:
            out = self._board.out()
            now_s = time.monotonic()
            self._due = {
                url: self._due.get(url, (now_s + self._first_s, self._first_s)) for url in out
            }
            for url in out:
                if self._due[url][0] <= now_s:
                    self._look(url)
            due_s = min((due for due, _ in self._due.values()), default=None)
            self._wake.wait(None if due_s is None else max(0.0, due_s - time.monotonic()))
            self._wake.clear()

    def _look(self, url: str) -> None:
        try:
            self._probe(url)
        except MmserveError:
            pause_s = min(self._due[url][1] * _GROWTH, _MOST_S)
            self._due[url] = (time.monotonic() + pause_s, pause_s)
        else:
            del self._due[url]
            self._board.take_in(url)
            self._on_back(url)
