"""The most prompt tokens that any order of serving could have taken from a cache.

Token d of a prompt need not be computed if a request served before left KV of the same first d
tokens. A request leaves KV of its prompt and, once it is answered, of its answer:

    request        [ 0 ........ limit )[ limit ....... n )[ n ......... n + answer )
                     may hit             always computed    computed by decoding
    a node of the trie of all requests, at depth d, is
      wanted by    requests through it with d <= limit:    they hit if it is there by then
      given by     requests through it with d > limit:     they compute it in any order

A node that nobody gives costs one of those that want it a computation. A node that somebody
gives costs them none, if a giver goes first; and its givers all have smaller limits than those
that want it. So serving by ascending limit suits all nodes at once, and no order does better.

Source: RadixAttention (SGLang: Efficient Execution of Structured Language Model Programs,
2024), theorem 3.1: depth-first order reaches the optimum with a cache that holds the longest
request. We differ: of every prompt at least one token is computed, prompts may be equal, and
answers count as cached. If only the last prompt token is out of bounds and no answer is used,
the theorem holds as it stands. With answers the number is exact for an unlimited cache, and a
bound for every smaller one: depth-first order reaches it too, unless answers to different
prompts lead into the same later prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["ServedRequest", "common_prefixes", "optimal_hits"]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ServedRequest:
    """What of a request decides its hits.

    Args:
        keys: int64 [n] prefix keys of the prompt.
        limit: most prompt tokens that may hit, in [0, n - 1], since logits need a forward.
        namespace: requests of different ones share nothing.
        answer_keys: int64 [a] of the answer's tokens that have KV once it is served: all but
            the last one drawn.
    """

    keys: NDArray[np.int64]
    limit: int
    namespace: str = ""
    answer_keys: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @property
    def all_keys(self) -> NDArray[np.int64]:
        """Keys int64 [n + a] of all that has KV in the end, a new array. Pure."""
        return np.concatenate((self.keys, self.answer_keys))


def optimal_hits(requests: Iterable[ServedRequest], *, page_tokens: int = 1) -> int:
    """Most prompt tokens that these requests could take from a cache, in the best order.

    Spans that must not be cut are not looked at; with them the true optimum may be lower.

    Args:
        requests: any number, in any order.
        page_tokens: every match ends at a multiple of it.

    Pure. Cost: for r requests O(r log r) comparisons of keys and O(r) vector operations.
    """
    served = list(requests)
    order, shared = common_prefixes(served)
    limits = [served[place].limit // page_tokens for place in order]
    num_pages = [num_tokens // page_tokens for num_tokens in shared]
    return page_tokens * _pages_hit(limits, num_pages)


def common_prefixes(requests: Sequence[ServedRequest]) -> tuple[list[int], list[int]]:
    """The requests in an order in which whoever shares a prefix stands together.

    Returns:
        order: [r] places in `requests`. The longest prefix that one shares with any of a set
            is shared with its nearest of the set in this order, on one side or the other.
        shared: [r] tokens, answers included, that each shares with the one before it in
            `order`; 0 for the first.

    Pure.
    """
    runs = [request.all_keys for request in requests]
    names = [
        (request.namespace, run.tobytes()) for request, run in zip(requests, runs, strict=True)
    ]
    order = sorted(range(len(runs)), key=names.__getitem__)
    shared = [0] * len(order)
    for rank, (left, right) in enumerate(pairwise(order), start=1):
        if requests[left].namespace == requests[right].namespace:
            shared[rank] = _num_equal(runs[left], runs[right])
    return order, shared


def _pages_hit(limits: list[int], shared: list[int]) -> int:
    """Hits, in pages, when served by ascending limit.

    Goes backwards: the last served leaves a chain of neighbours in which all others, its
    predecessors in serving, still stand.

    Args:
        limits: most pages that may hit, in an order of `common_prefixes`.
        shared: pages in common with the one before.
    """
    num_requests = len(limits)
    before = list(range(-1, num_requests - 1))
    behind = list(range(1, num_requests + 1))
    shared = [*shared, 0]
    num_hit = 0
    for rank in sorted(range(num_requests), key=lambda rank: -limits[rank]):
        left, right = before[rank], behind[rank]
        num_hit += min(limits[rank], max(shared[rank], shared[right]))
        shared[right] = min(shared[rank], shared[right])
        if left >= 0:
            behind[left] = right
        if right < num_requests:
            before[right] = left
    return num_hit


def _num_equal(left: NDArray[np.int64], right: NDArray[np.int64]) -> int:
    """Length of the common prefix."""
    length = min(len(left), len(right))
    differs = left[:length] != right[:length]
    return int(differs.argmax()) if differs.any() else length
