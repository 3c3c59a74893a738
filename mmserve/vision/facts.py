"""A small memory of headers, so that the same bytes are not walked twice."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["RecentFacts"]

_Fact = TypeVar("_Fact")


class RecentFacts(Generic[_Fact]):
    """Least recently used facts by name, bounded by their total weight. Safe from any thread.

    Two threads that miss one name at once both work it out; the facts are equal.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._facts: OrderedDict[bytes, tuple[_Fact, int]] = OrderedDict()
        self._weight = 0

    def get(
        self, name: bytes, work: Callable[[], _Fact], weigh: Callable[[_Fact], int]
    ) -> _Fact:
        """The fact of `name`, worked out if it is not remembered; errors are not remembered."""
        with self._lock:
            known = self._facts.get(name)
            if known is not None:
                self._facts.move_to_end(name)
                return known[0]
        fact = work()
        weight = weigh(fact)
        with self._lock:
            if name not in self._facts and weight <= self._limit:
                self._facts[name] = (fact, weight)
                self._weight += weight
            while self._weight > self._limit:
                self._weight -= self._facts.popitem(last=False)[1][1]
        return fact
