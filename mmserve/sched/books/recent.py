"""The latest requests, and how close their hits came to the most that could have been.

    window       the last requests, few enough to be cheap
    hits         prompt tokens of theirs that they did not compute
    optimum      most hits of theirs in any order, given what was cached before the window

What was cached before is not known, but it shows: the prefix that a request hit, as far as
nobody in the window computed it, must have been there.

    request      [ 0 ...... warm )[ warm ....... hit )[ hit ........ n )
                   cached before    computed by a        computed by
                   the window       neighbour            this one
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.sched.books.optimum import ServedRequest, common_prefixes, optimal_hits

__all__ = ["RecentRequests", "RecentShare"]

_MAX_REQUESTS = 256
_MAX_TOKENS = 1 << 19


@dataclass(frozen=True, slots=True)
class RecentShare:
    """Of the window: prompt tokens, those that were hits, and those that could have been."""

    num_tokens: int = 0
    hits: int = 0
    optimal_hits: int = 0


class RecentRequests:
    """A window on the latest requests. Mutable; one thread notes, another may ask.

    Args:
        max_requests: most of them.
        max_tokens: most tokens of prompts and answers in all.
        page_tokens: a hit ends at a multiple of it.
    """

    def __init__(
        self,
        *,
        max_requests: int = _MAX_REQUESTS,
        max_tokens: int = _MAX_TOKENS,
        page_tokens: int = 1,
    ) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._page_tokens = page_tokens
        self._window: deque[tuple[ServedRequest, int]] = deque()
        self._num_tokens = 0
        self._num_noted = 0
        self._told: tuple[int, RecentShare] = (0, RecentShare())

    def note(self, request: ServedRequest, hits: int) -> None:
        """Add a request that has ended with so many hits. Changes: the window."""
        self._window.append((request, hits))
        self._num_tokens += _size(request)
        while len(self._window) > self._max_requests or self._num_tokens > self._max_tokens:
            oldest, _ = self._window.popleft()
            self._num_tokens -= _size(oldest)
        self._num_noted += 1

    def share(self) -> RecentShare:
        """Hits of the window beside its optimum, which is never less.

        Changes: the answer is kept until another request is noted. Cost: sorts the window; may
        be asked in a thread that is in no hurry.
        """
        num_noted, told = self._told
        if num_noted != self._num_noted:
            num_noted = self._num_noted
            told = _share(tuple(self._window.copy()), self._page_tokens)
            self._told = (num_noted, told)
        return told


def _size(request: ServedRequest) -> int:
    return len(request.keys) + len(request.answer_keys)


def _share(window: Sequence[tuple[ServedRequest, int]], page_tokens: int) -> RecentShare:
    requests = [request for request, _ in window]
    hits = [num_hits for _, num_hits in window]
    before = [
        ServedRequest(keys=request.keys[:warm], limit=0, namespace=request.namespace)
        for request, warm in zip(requests, _warm_prefixes(requests, hits), strict=True)
        if warm
    ]
    best = optimal_hits([*requests, *before], page_tokens=page_tokens)
    num_tokens = sum(len(request.keys) for request in requests)
    return RecentShare(num_tokens, sum(hits), max(best, sum(hits)))


def _warm_prefixes(requests: Sequence[ServedRequest], hits: Sequence[int]) -> list[int]:
    """For each request, the tokens that it hit before anybody of these computed them. Pure.

    A neighbour computed everything from its own hits on, so also what it shares from there.
    """
    order, shared = common_prefixes(requests)
    reach = np.asarray(shared, dtype=np.int64)
    found = np.asarray([hits[place] for place in order], dtype=np.int64)
    warm = [0] * len(requests)
    for rank, place in enumerate(order):
        left = np.minimum.accumulate(reach[rank:0:-1])
        right = np.minimum.accumulate(reach[rank + 1 :])
        warm[place] = min(
            hits[place],
            _first_computed(left, found[:rank][::-1]),
            _first_computed(right, found[rank + 1 :]),
        )
    return warm


def _first_computed(common: NDArray[np.int64], hits: NDArray[np.int64]) -> int:
    """The earliest token that one of these neighbours shares and has computed itself."""
    is_computed = hits < common
    return int(hits[is_computed].min()) if is_computed.any() else np.iinfo(np.int64).max
