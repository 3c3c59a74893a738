"""The parts of the hit-rate benchmark: streams, replay, and the clairvoyant reference."""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clairvoyant import Trie, _foresighted, clairvoyant_hits
from benchmarks.hit_rate import UNLIMITED, Case, Trace, cases
from benchmarks.hit_rate_plot import plot
from benchmarks.replay import replay
from benchmarks.shapes import SHAPES, stream
from mmserve.core import SchedConfig
from mmserve.sched.books.optimum import ServedRequest, optimal_hits


def request(keys) -> ServedRequest:
    """A request without an answer."""
    return ServedRequest(keys=np.array(keys, dtype=np.int64), limit=len(keys) - 1)


def best_hits(requests, capacity) -> int:
    """Most hits in this order over all evictions that keep whole prefixes, by exhaustion."""
    states = {frozenset(): 0}
    for served in requests:
        run = tuple(served.keys.tolist())
        path = frozenset(run[:end] for end in range(1, len(run) + 1))
        reached: dict[frozenset, int] = {}
        for cached, num_hits in states.items():
            total = num_hits + sum(run[:end] in cached for end in range(1, served.limit + 1))
            others = sorted(cached - path)
            for keep in product((False, True), repeat=len(others)):
                kept = path.union(
                    node for node, is_kept in zip(others, keep, strict=True) if is_kept
                )
                is_closed = all(node[:-1] in kept for node in kept if len(node) > 1)
                if len(kept) <= capacity and is_closed:
                    reached[kept] = max(reached.get(kept, 0), total)
        states = reached
    return max(states.values())


PROMPTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(PROMPTS, st.integers(0, 4))
def test_foresight_evicts_as_well_as_exhaustion(prompts, num_spare):
    """No eviction beats the rule by more than the one token of a prompt that never hits."""
    requests = [request(keys) for keys in prompts]
    capacity = max(len(keys) for keys in prompts) + num_spare
    order = list(range(len(requests)))
    best = best_hits(requests, capacity)
    assert best - len(requests) <= _foresighted(Trie.of(requests), order, capacity) <= best


@settings(deadline=None)
@given(PROMPTS)
def test_with_room_for_all_the_clairvoyant_reaches_the_optimum(prompts):
    """If nothing is evicted and all wait from the start, one of the orders is best."""
    requests = [request(keys) for keys in prompts]
    capacity = sum(len(keys) for keys in prompts)
    orders = permutations(range(len(requests)))
    best = max(_foresighted(Trie.of(requests), list(order), capacity) for order in orders)
    assert best == optimal_hits(requests)


def test_nobody_is_started_before_it_came():
    """A request that shares everything but comes last cannot follow its neighbour."""
    trie = Trie.of([request([1, 1, 1, 2]), request([5, 5, 5, 5]), request([1, 1, 1, 3])])
    assert clairvoyant_hits(trie, [0, 0, 0], [1, 2, 3], 4) == 3
    assert clairvoyant_hits(trie, [0, 0, 5], [1, 2, 6], 4) == 3
    assert clairvoyant_hits(trie, [0, 1.5, 5], [1, 2, 6], 4) == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_goes_on_from_recorded_answers(shape):
    """What comes after a request holds its prompt and its answer."""
    asks = stream(shape, 40)
    for ask in asks:
        if ask.after is not None:
            before = asks[ask.after]
            start = before.prompt.num_tokens
            head = ask.prompt.token_ids[: before.num_tokens]
            assert head[:start].tolist() == before.prompt.token_ids.tolist()
            assert head[start:].tolist() == before.answer.tolist()


@pytest.mark.parametrize("shape", SHAPES)
def test_a_stream_is_the_same_each_time(shape):
    """Streams follow from their seed."""
    first, second = stream(shape, 40), stream(shape, 40)
    assert [a.prompt.token_ids.tolist() for a in first] == [
        a.prompt.token_ids.tolist() for a in second
    ]


@pytest.mark.parametrize("shape", SHAPES)
def test_no_run_hits_more_than_the_optimum(shape):
    """The optimum is a bound offline and online, with little and with much room."""
    trace = Trace(shape, 20)
    for capacity, load in product((1.1, UNLIMITED), (None, 0.9)):
        done = trace.run(Case(shape=shape, capacity=capacity, load=load))
        assert 0 <= done.hit_tokens <= trace.hits_with_answers < trace.num_prompt


def test_an_online_chain_waits_for_its_answers():
    """A client asks on only after the answer it goes on from."""
    trace = Trace("chat", 20)
    done = trace.run(Case(shape="chat", capacity=UNLIMITED, load=2.0))
    follows = [
        (place, ask.after) for place, ask in enumerate(trace.asks) if ask.after is not None
    ]
    assert all(done.arrived_s[place] > done.started_s[before] for place, before in follows)


def test_one_request_alone_in_a_cache_just_large_enough():
    """A stream of one request is served, and hits nothing."""
    ask = stream("chat", 5)[0]
    done = replay(
        [ask],
        [3.0],
        SchedConfig(),
        num_slots=ask.num_tokens,
        context_length=ask.num_tokens,
    )
    assert (done.hit_tokens, done.prompt_computed) == (0, ask.prompt.num_tokens)
    assert done.waits_s.tolist() == pytest.approx([0.0], abs=1e-6)


def test_held_back_turns_reach_the_optimum():
    """With room for all, only a turn that starts before its answer is known loses hits."""
    trace = Trace("chat", 20)
    due_s = [0.0 if ask.after is None else None for ask in trace.asks]
    done = replay(
        trace.asks,
        due_s,
        SchedConfig(),
        num_slots=trace.total,
        context_length=trace.longest,
    )
    assert done.hit_tokens == trace.hits_with_answers


def test_a_plot_shows_every_capacity(tmp_path):
    """The picture is an SVG with a panel for each capacity that was run."""
    pytest.importorskip("matplotlib")
    rows = [
        {
            "shape": "chat",
            "capacity": capacity,
            "load": load,
            "policy": "longest-prefix",
            "fairness": True,
            "share_of_optimum": 0.5,
        }
        for capacity, load in product((1.1, 2.0, 4.0, "unlimited"), ("offline", 0.9))
    ]
    plot(rows, tmp_path / "hits.svg")
    assert (tmp_path / "hits.svg").read_text().count('<g id="axes_') == 4


def test_every_default_case_is_run_with_the_cache_the_targets_name():
    """Offline every capacity is measured, quick or not."""
    for quick in (False, True):
        found = {case.capacity for case in cases("chat", quick=quick) if case.load is None}
        assert found >= {1.1, 2.0, 4.0, UNLIMITED}
