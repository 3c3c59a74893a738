"""A small memory of headers, so that the same bytes are not walked twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["RecentFacts"]

_Fact = TypeVar("_Fact")


class RecentFacts(Generic[_Fact]):
    """Least recently used facts by name, bounded by their total weight. Safe from any thread.

    Threads that miss one name at a time share the work of the first of them, and its error.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._facts: OrderedDict[bytes, tuple[_Fact, int]] = OrderedDict()
        self._weight = 0
        self._under_way: dict[bytes, Future[_Fact]] = {}

    def get(
        self, name: bytes, work: Callable[[], _Fact], weigh: Callable[[_Fact], int]
    ) -> _Fact:
        """The fact of `name`, worked out if it is not remembered; errors are not remembered."""
        with self._lock:
            known = self._facts.get(name)
            if known is not None:
                self._facts.move_to_end(name)
                return known[0]
            running = self._under_way.get(name)
            mine: Future[_Fact] = Future()
            if running is None:
                self._under_way[name] = mine
        if running is not None:
            return running.result()
        try:
            fact = work()
        except BaseException as error:
            with self._lock:
                del self._under_way[name]
            mine.set_exception(error)
            raise
        with self._lock:
            del self._under_way[name]
            self._keep(name, fact, weigh(fact))
        mine.set_result(fact)
        return fact

    def _keep(self, name: bytes, fact: _Fact, weight: int) -> None:
        """Changes: the facts. Call with the lock held."""
        if weight <= self._limit:
            self._facts[name] = (fact, weight)
            self._weight += weight
        while self._weight > self._limit:
            self._weight -= self._facts.popitem(last=False)[1][1]
