"""What a server that knows the future could have hit, with the cache and the starts it had.

The k-th request was started at some moment. The clairvoyant server also starts one then, but
any that has come and was not started yet, and it evicts what is needed last (Belady's rule).
Which order is best is a hard question; the reference is the best of several:

    as it was        the order that was measured, so only eviction is better
    first come       the order of arrival
    nearest          most in common with the request started last; among equals the earliest,
                     the one that most waiting tokens share, or the one that least future
                     tokens share

So the number is reached by a schedule, and need not be the most that one could reach; the
optimum of all requests (`mmserve.sched.books.optimum`) bounds it from above.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from mmserve.sched.books.optimum import ServedRequest, common_prefixes

__all__ = ["Trie", "clairvoyant_hits"]

_NEVER = 1 << 60


class _Tie(Enum):
    EARLIEST = "earliest arrival"
    WAITING = "most waiting tokens"
    FUTURE = "least future tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """All requests of a stream as one compressed trie.

    Args:
        limits: [r] most tokens that may hit.
        paths: [r] runs that each request goes through, from the root.
        starts: depth at which each run begins, in tokens.
        ends: depth at which it ends.
        common: int64 [r, r] tokens that two requests share.
    """

    limits: list[int]
    paths: list[list[int]]
    starts: list[int]
    ends: list[int]
    common: NDArray[np.int64]

    @classmethod
    def of(cls, requests: Sequence[ServedRequest]) -> Trie:
        """Build it. Pure. Cost: O(r squared)."""
        order, shared = common_prefixes(requests)
        sizes = [len(request.keys) + len(request.answer_keys) for request in requests]
        trie = cls(
            limits=[request.limit for request in requests],
            paths=[[] for _ in requests],
            starts=[],
            ends=[],
            common=_common(order, shared, sizes),
        )
        trie._split(order, shared, sizes)
        return trie

    def _split(self, order: list[int], shared: list[int], sizes: list[int]) -> None:
        """Cut requests into runs. Changes: paths, starts, ends."""
        pending = [(0, len(order), 0)]
        while pending:
            first, last, start = pending.pop()
            is_alone = last - first == 1
            end = sizes[order[first]] if is_alone else min(shared[first + 1 : last])
            if end > start:
                for place in order[first:last]:
                    self.paths[place].append(len(self.starts))
                self.starts.append(start)
                self.ends.append(end)
            if is_alone:
                continue
            cuts = [rank for rank in range(first + 1, last) if shared[rank] == end]
            bounds = [first, *cuts, last]
            pending += [(a, b, end) for a, b in pairwise(bounds)]


def _common(order: list[int], shared: list[int], sizes: list[int]) -> NDArray[np.int64]:
    """Tokens in common of every pair [r, r], itself included."""
    count = len(order)
    between = np.zeros((count, count), dtype=np.int64)
    steps = np.array(shared, dtype=np.int64)
    for rank in range(count):
        between[rank, rank + 1 :] = np.minimum.accumulate(steps[rank + 1 :])
    between += between.T + np.diag(np.array(sizes, dtype=np.int64)[order])
    rank_of = np.argsort(np.array(order))
    return between[np.ix_(rank_of, rank_of)]


def clairvoyant_hits(
    trie: Trie,
    arrived_s: Sequence[float],
    started_s: Sequence[float],
    capacity_tokens: int,
) -> int:
    """Hits of the best of the orders above with a cache of that many tokens. Pure.

    Args:
        trie: of all requests of the stream.
        arrived_s: [r] when each request came.
        started_s: [r] when each was started.
        capacity_tokens: of the cache; the longest request fits.
    """
    by_start = sorted(range(len(started_s)), key=lambda place: started_s[place])
    by_arrival = sorted(range(len(arrived_s)), key=lambda place: arrived_s[place])
    moments = [started_s[place] for place in by_start]
    orders = [by_start, by_arrival]
    orders += [_nearest(trie, arrived_s, by_arrival, moments, tie) for tie in _Tie]
    return max(_foresighted(trie, order, capacity_tokens) for order in orders)


def _nearest(
    trie: Trie,
    arrived_s: Sequence[float],
    by_arrival: list[int],
    moments: list[float],
    tie: _Tie,
) -> list[int]:
    """Each time the arrived request nearest to the last one."""
    count = len(by_arrival)
    is_waiting = np.zeros(count, dtype=np.bool_)
    future = trie.common.sum(axis=1).astype(np.float64)
    lateness = np.argsort(np.argsort(np.array(arrived_s), kind="stable")).astype(np.float64)
    ranks = {_Tie.EARLIEST: lateness, _Tie.WAITING: np.zeros(count), _Tie.FUTURE: future}
    order: list[int] = []
    num_arrived = 0
    for now_s in moments:
        while num_arrived < count and arrived_s[by_arrival[num_arrived]] <= now_s:
            newcomer = by_arrival[num_arrived]
            is_waiting[newcomer] = True
            ranks[_Tie.WAITING] -= trie.common[newcomer]
            future -= trie.common[newcomer]
            num_arrived += 1
        places = np.flatnonzero(is_waiting)
        near = trie.common[order[-1], places] if order else np.zeros(len(places))
        best = places[near == near.max()]
        chosen = int(best[np.argmin(ranks[tie][best])])
        is_waiting[chosen] = False
        ranks[_Tie.WAITING] += trie.common[chosen]
        order.append(chosen)
    return order


def _foresighted(trie: Trie, order: list[int], capacity_tokens: int) -> int:
    """Hits of one request after the other, evicting from the run needed last."""
    uses: list[list[int]] = [[] for _ in trie.starts]
    for turn in range(len(order) - 1, -1, -1):
        place = order[turn]
        for run in trie.paths[place]:
            if trie.starts[run] < trie.limits[place]:
                uses[run].append(turn)
    kept = [0] * len(trie.starts)
    entries: list[tuple[int, int, int]] = []
    num_kept = num_hits = 0
    for turn, place in enumerate(order):
        path = trie.paths[place]
        found = 0
        for run in path:
            found += kept[run]
            if kept[run] < trie.ends[run] - trie.starts[run]:
                break
        num_hits += min(found, trie.limits[place])
        for run in path:
            if uses[run] and uses[run][-1] == turn:
                uses[run].pop()
            num_kept += trie.ends[run] - trie.starts[run] - kept[run]
            kept[run] = trie.ends[run] - trie.starts[run]
        num_kept -= _evict(entries, kept, uses, set(path), num_kept - capacity_tokens)
        for run in path:
            next_use = uses[run][-1] if uses[run] else _NEVER
            heapq.heappush(entries, (-next_use, -trie.starts[run], run))
    return num_hits


def _evict(
    entries: list[tuple[int, int, int]],
    kept: list[int],
    uses: list[list[int]],
    path: set[int],
    num_tokens: int,
) -> int:
    """Forget tokens needed last, deepest first; how many. Changes: entries, kept.

    Runs of `path` are entered anew by the caller.
    """
    num_gone = 0
    while num_gone < num_tokens and entries:
        negative_use, _, run = entries[0]
        next_use = uses[run][-1] if uses[run] else _NEVER
        if run in path or not kept[run] or next_use != -negative_use:
            heapq.heappop(entries)
            continue
        num_cut = min(kept[run], num_tokens - num_gone)
        kept[run] -= num_cut
        num_gone += num_cut
    return num_gone
