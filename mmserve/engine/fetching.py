"""Threads for requests whose media come over the network, apart from those of all others.

request -> no address to fetch         -> the threads for media at hand
        -> first address is on host A  -> lane A: 6 of 16 threads at most, the rest wait
                           on host B   -> lane B: the same, in turns with A

A host that does not answer holds up those who wait for it, and nobody else.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from mmserve.core import Busy

__all__ = ["FetchThreads"]

_NUM_THREADS = 16
_NUM_OF_A_HOST = 6
_MAX_WAITING = 4096
_MAX_WAITING_FOR_A_HOST = 1024
_RETRY_AFTER_S = 5.0

_Work = Callable[[], None]


@dataclass(slots=True)
class _Lane:
    """What is to be fetched from one host first."""

    waiting: deque[_Work] = field(default_factory=deque)
    num_running: int = 0


class FetchThreads:
    """Runs work that waits for hosts, each in a part of the threads. Safe from any thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="mmserve-fetch")
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}  # whose turn it is first comes first
        self._num_threads = 0
        self._num_waiting = 0

    def submit(self, host: str, work: _Work) -> None:
        """Run `work`, which raises nothing, when it is the turn of `host`.

        Raises Busy if too many wait, RuntimeError after `shutdown`. Changes: what waits.
        """
        with self._lock:
            lane = self._lanes.get(host, _Lane())
            self._check_room(host, lane)
            if lane.num_running < _NUM_OF_A_HOST and self._num_threads < _NUM_THREADS:
                self._pool.submit(self._run)
                self._num_threads += 1
            lane.waiting.append(work)
            self._lanes[host] = lane
            self._num_waiting += 1

    def shutdown(self) -> None:
        """Take no more, and wait for the end of all that was taken. Idempotent."""
        self._pool.shutdown(wait=True)

    def _check_room(self, host: str, lane: _Lane) -> None:
        num_waiting, where, limit = len(lane.waiting), host[:80], _MAX_WAITING_FOR_A_HOST
        if num_waiting < limit:
            num_waiting, where, limit = self._num_waiting, "any host", _MAX_WAITING
        if num_waiting < limit:
            return
        message = f"{num_waiting} requests wait for media from {where}, the limit is {limit}"
        hint = "try later, or send the media themselves as data: addresses"
        raise Busy(message, hint=hint, retry_after_s=_RETRY_AFTER_S)

    def _run(self) -> None:
        """One thread's life: work while there is any that a host has threads left for."""
        taken = self._take()
        while taken is not None:
            host, work = taken
            try:
                work()
            finally:
                self._leave(host)
            taken = self._take()

    def _take(self) -> tuple[str, _Work] | None:
        """The next work and its host; None, and the thread ends, if none may run."""
        with self._lock:
            for host, lane in self._lanes.items():
                if lane.waiting and lane.num_running < _NUM_OF_A_HOST:
                    self._lanes[host] = self._lanes.pop(host)  # the others' turn comes first
                    lane.num_running += 1
                    self._num_waiting -= 1
                    return host, lane.waiting.popleft()
            self._num_threads -= 1
            return None

    def _leave(self, host: str) -> None:
        with self._lock:
            lane = self._lanes[host]
            lane.num_running -= 1
            if not lane.num_running and not lane.waiting:
                del self._lanes[host]
