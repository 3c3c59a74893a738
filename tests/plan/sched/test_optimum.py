"""The reference solver of hits against plain tries and against all orders."""

from __future__ import annotations

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.sched.books.optimum import ServedRequest, common_prefixes, optimal_hits


def request(keys, *, limit=None, namespace="", answer=()) -> ServedRequest:
    """A request of lists; all but the last prompt token may hit unless told otherwise."""
    return ServedRequest(
        keys=np.array(keys, dtype=np.int64),
        limit=len(keys) - 1 if limit is None else limit,
        namespace=namespace,
        answer_keys=np.array(answer, dtype=np.int64),
    )


def prefixes(served: ServedRequest, num_tokens: int) -> set:
    """Nodes of the trie that the first `num_tokens` go through."""
    run = served.all_keys.tolist()
    return {(served.namespace, *run[:end]) for end in range(1, num_tokens + 1)}


def hits_in_order(requests, page_tokens) -> int:
    """Hits of an unlimited cache when requests are served one by one as they stand."""
    cached: set = set()
    num_hits = 0
    for served in requests:
        run = served.all_keys.tolist()
        found = 0
        while found < len(served.keys) and (served.namespace, *run[: found + 1]) in cached:
            found += 1
        num_hits += min(found, served.limit) // page_tokens * page_tokens
        cached |= prefixes(served, len(run))
    return num_hits


def depth_first_hits(requests) -> int:
    """Hits of depth-first order when only the path of the last request is cached."""
    order, _ = common_prefixes(requests)
    num_hits, path = 0, set()
    for place in order:
        served = requests[place]
        num_hits += sum(node in path for node in prefixes(served, served.limit))
        path = prefixes(served, len(served.keys))
    return num_hits


KEYS = st.lists(st.integers(0, 2), min_size=1, max_size=6)


@st.composite
def served_requests(draw, max_requests=5, *, with_answers=True):
    """Some requests with a lot in common: one of them may go on where another one ended."""
    found: list[ServedRequest] = []
    for _ in range(draw(st.integers(0, max_requests))):
        keys = draw(KEYS)
        if found and draw(st.booleans()):
            keys = draw(st.sampled_from(found)).all_keys.tolist() + keys[:2]
        limit = len(keys) - 1
        if draw(st.integers(0, 3)) == 0:
            limit = draw(st.integers(0, limit))
        answer = draw(st.lists(st.integers(0, 2), max_size=4)) if with_answers else ()
        namespace = draw(st.sampled_from(["", "", "salt"]))
        found.append(request(keys, limit=limit, namespace=namespace, answer=answer))
    return found


@settings(max_examples=300)
@given(served_requests(), st.sampled_from([1, 2, 3]))
def test_equals_the_best_of_all_orders(requests, page_tokens):
    """No order of an unlimited cache beats the solver, and some order reaches it."""
    best = max(hits_in_order(order, page_tokens) for order in permutations(requests))
    assert optimal_hits(requests, page_tokens=page_tokens) == best


@given(served_requests(max_requests=40, with_answers=False))
def test_equals_tokens_less_edges_of_the_trie(requests):
    """Hits are tokens less edges of the trie, less one for every repetition of a prompt."""
    whole = [request(served.keys, namespace=served.namespace) for served in requests]
    edges = set().union(*(prefixes(served, len(served.keys)) for served in whole))
    different = {(served.namespace, *served.keys.tolist()) for served in whole}
    num_tokens = sum(len(served.keys) for served in whole)
    assert optimal_hits(whole) == num_tokens - len(edges) - (len(whole) - len(different))


@given(served_requests(max_requests=40, with_answers=False))
def test_depth_first_order_reaches_it_with_one_path_cached(requests):
    """Without answers a cache of a single path is enough, as the paper's theorem says."""
    whole = [request(served.keys, namespace=served.namespace) for served in requests]
    assert depth_first_hits(whole) == optimal_hits(whole)


@given(served_requests(max_requests=30), st.randoms(use_true_random=False))
def test_order_of_the_requests_does_not_matter(requests, random):
    """The number belongs to the set of requests."""
    shuffled = random.sample(requests, len(requests))
    assert optimal_hits(shuffled) == optimal_hits(requests)


def test_a_repeated_prompt_computes_its_last_token():
    """Of three equal prompts two hit all but the last token."""
    assert optimal_hits([request([1, 2, 3, 4])] * 3) == 6


def test_a_prompt_hits_the_answer_of_the_turn_before():
    """A second turn computes what neither the first turn's prompt nor its answer had."""
    turns = [request([1, 2, 3, 4, 5, 6]), request([1, 2], answer=[3, 4])]
    assert optimal_hits(turns) == 4


def test_an_answer_can_hold_a_later_prompt_as_a_whole():
    """A prompt that an earlier answer spelled out computes only its last token."""
    assert optimal_hits([request([1], answer=[2, 3, 4]), request([1, 2, 3, 4])]) == 3


def test_namespaces_share_nothing():
    """Equal prompts under two salts have no hits."""
    assert optimal_hits([request([1, 2, 3]), request([1, 2, 3], namespace="b")]) == 0


def test_matches_end_at_a_page():
    """Two prompts with five common tokens share one page of four."""
    pair = [request([1, 2, 3, 4, 5, 6]), request([1, 2, 3, 4, 5, 7])]
    assert optimal_hits(pair, page_tokens=4) == 4


def test_a_scored_prompt_hits_only_up_to_its_limit():
    """A prompt whose tokens are scored from the third on hits no more than two."""
    assert optimal_hits([request([1, 2, 3, 4, 5]), request([1, 2, 3, 4, 5], limit=2)]) == 4


def test_nothing_served_nothing_hit():
    """No requests have no hits."""
    assert optimal_hits([]) == 0
