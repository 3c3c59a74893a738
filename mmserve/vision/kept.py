"""Fetched bytes between a hint and the requests that it was for.

hint -> expected -> fetched -> kept  --- first use --->  kept a moment longer -> gone
           |                     +---- nobody came ----------------------------> gone
           +-- a request fetches it first: the hint has nothing left to do

held -> fetched by a request -> kept, whatever uses come -> released -> gone

Keyed by tenant and address, so nobody is given what another tenant fetched. What lies behind an
address may change: bytes are for the requests that follow a hint soon, not a cache of the web.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

__all__ = ["KeptFetches", "Key"]

_LINGER_S = 1.0
"""Kept so long after the first use: requests sent together share, however they are spread."""

Key = tuple[str, str]
"""A tenant's salt and an address."""


@dataclass(slots=True)
class _Kept:
    content: bytes
    expires_s: float


class KeptFetches:
    """Fetches that hints have asked for. Not safe from several threads: its owner has a lock.

    Args:
        limit_bytes: most bytes kept; the oldest go first.
        age_s: seconds that bytes wait for their first use.
        clock: seconds, never falling.
    """

    def __init__(
        self, limit_bytes: int, age_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        self._limit_bytes = limit_bytes
        self._age_s = age_s
        self._clock = clock
        self._num_bytes = 0
        self._kept: OrderedDict[Key, _Kept] = OrderedDict()
        self._expected: dict[Key, bool] = {}
        """Hints whose fetch is to come or under way, and whether a request came meanwhile."""
        self._holders: Counter[Key] = Counter()

    def __len__(self) -> int:
        return len(self._kept)

    def hold(self, key: Key) -> None:
        """Keep what is there, or comes, until `release`. Changes: who holds it."""
        self._drop_old()
        self._holders[key] += 1
        if key in self._kept:
            self._kept[key].expires_s = math.inf

    def release(self, key: Key) -> None:
        """Undo one `hold`. Changes: bytes that nobody holds any more are gone."""
        self._holders[key] -= 1
        if not self._holders[key]:
            del self._holders[key]
            self._drop(key)

    def expect(self, key: Key) -> None:
        """A hint names an address. Changes: what is expected."""
        self._drop_old()
        self._expected.setdefault(key, False)

    def is_wanted(self, key: Key) -> bool:
        """Whether a hint is still to be fetched: no request has come for it. Pure."""
        return self._expected.get(key) is False

    def look(self, key: Key) -> bytes | None:
        """Bytes kept, for another hint: that is no use of them. Pure."""
        kept = self._kept.get(key)
        return None if kept is None or kept.expires_s <= self._clock() else kept.content

    def use(self, key: Key) -> bytes | None:
        """Bytes kept, for a request. Changes: they go soon; what is expected has been asked."""
        self._drop_old()
        if key in self._expected:
            self._expected[key] = True
        kept = self._kept.get(key)
        if kept is None:
            return None
        if key not in self._holders:
            kept.expires_s = min(kept.expires_s, self._clock() + _LINGER_S)
        return kept.content

    def keep(self, key: Key, content: bytes) -> None:
        """An address was fetched; ignored if no hint expects it, and nobody holds it.

        Changes: bytes kept.
        """
        self._drop_old()
        is_used, is_held = self._expected.pop(key, None), key in self._holders
        if (is_used is None and not is_held) or len(content) > self._limit_bytes:
            return
        self._drop(key)
        age_s = math.inf if is_held else _LINGER_S if is_used else self._age_s
        self._kept[key] = _Kept(content, self._clock() + age_s)
        self._num_bytes += len(content)
        while self._num_bytes > self._limit_bytes:
            oldest = next(iter(self._kept))
            self._drop(next((key for key in self._kept if key not in self._holders), oldest))

    def give_up(self, key: Key) -> None:
        """A hint comes to nothing. Changes: it is not expected any more."""
        self._expected.pop(key, None)

    def forget(self) -> None:
        """Changes: nothing is kept but what is held."""
        for key in [key for key in self._kept if key not in self._holders]:
            self._drop(key)

    def _drop_old(self) -> None:
        now_s = self._clock()
        for key in [key for key, kept in self._kept.items() if kept.expires_s <= now_s]:
            self._drop(key)

    def _drop(self, key: Key) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._num_bytes -= len(kept.content)
