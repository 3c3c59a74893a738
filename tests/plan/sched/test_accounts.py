"""Books of hits, waits, and of the latest requests beside their optimum."""

from __future__ import annotations

import itertools
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.core import CacheUse, Usage, cache_uses, total_usage
from mmserve.sched.books.accounts import CacheAccount, WaitAccount, quantile
from mmserve.sched.books.optimum import ServedRequest, optimal_hits
from mmserve.sched.books.recent import RecentRequests, RecentShare
from mmserve.sched.books.report import SchedReport

KINDS = ("text", "image", "video")
OUTCOMES = ("hit", "never_seen", "evicted", "namespace", "order", "boundary")
USES = st.lists(
    st.builds(
        CacheUse, st.sampled_from(KINDS), st.sampled_from(OUTCOMES), st.integers(0, 1000)
    ),
    max_size=12,
)


def request(
    keys: list[int], namespace: str = "", answer: tuple[int, ...] = ()
) -> ServedRequest:
    """A prompt of which all but the last token may hit."""
    return ServedRequest(
        keys=np.asarray(keys, dtype=np.int64),
        limit=len(keys) - 1,
        namespace=namespace,
        answer_keys=np.asarray(answer, dtype=np.int64),
    )


def window(*pairs: tuple[ServedRequest, int], **limits: int) -> RecentRequests:
    """A window that has seen these requests with their hits."""
    recent = RecentRequests(**limits)
    for one, hits in pairs:
        recent.note(one, hits)
    return recent


def sums(uses: list[CacheUse]) -> Counter[tuple[str, str]]:
    """Tokens by kind and outcome, counted the plain way."""
    counted: Counter[tuple[str, str]] = Counter()
    for use in uses:
        counted[use.kind, use.outcome] += use.num_tokens
    return counted


# What prompts found


@given(st.lists(USES, max_size=6))
def test_totals_are_the_sums_of_all_requests(requests):
    """Nothing is lost, nothing counts twice."""
    account = CacheAccount()
    for uses in requests:
        account.note(Usage(sum(use.num_tokens for use in uses), cache=tuple(uses)))
    assert Counter(account.totals()) == sums([use for uses in requests for use in uses])


def test_totals_told_do_not_change_later():
    """They are a copy."""
    account = CacheAccount()
    account.note(Usage(3, cache=(CacheUse("text", "hit", 3),)))
    told = account.totals()
    account.note(Usage(4, cache=(CacheUse("text", "hit", 4),)))
    assert told == {("text", "hit"): 3}


@given(USES)
def test_uses_joined_hold_each_pair_once(uses):
    """The sum of each pair stays as it was."""
    joined = cache_uses(uses)
    assert len({(use.kind, use.outcome) for use in joined}) == len(joined)
    assert sums(list(joined)) == sums(uses)


@given(st.lists(st.tuples(st.integers(0, 99), USES), max_size=5))
def test_usages_add_up_field_by_field(parts):
    """Counts are added, and so is what the cache had."""
    usages = [Usage(n, n, cached_tokens=n, cache=tuple(uses)) for n, uses in parts]
    total = total_usage(usages)
    expected = sum(n for n, _ in parts)
    assert (total.prompt_tokens, total.completion_tokens) == (expected, expected)
    assert sums(list(total.cache)) == sums([use for _, uses in parts for use in uses])


def test_the_hit_rate_counts_all_kinds():
    """Hits over all prompt tokens; 0 before there are any."""
    tokens = {("text", "hit"): 6, ("image", "hit"): 3, ("image", "evicted"): 3}
    assert SchedReport(prompt_tokens=tokens).hit_rate == 0.75
    assert SchedReport().hit_rate == 0


# How long clients waited


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=700))
def test_quantiles_are_those_of_the_latest_waits(waits):
    """At least half of the latest 512 waits are no longer than the median; all are counted."""
    account = WaitAccount()
    for wait in waits:
        account.note("a", wait)
    told, latest = account.quantiles()["a"], waits[-512:]
    assert told.count == len(waits)
    for value, share in ((told.p50_ms, 0.5), (told.p99_ms, 0.99)):
        assert value in latest
        assert sum(wait <= value for wait in latest) >= share * len(latest)
        assert sum(wait < value for wait in latest) < share * len(latest)


def test_a_quantile_of_nothing_is_zero():
    """No wait is no error."""
    assert quantile((), 0.99) == 0


def test_waits_are_kept_by_client():
    """One client's waits say nothing of another's."""
    account = WaitAccount()
    for client, wait in (("a", 1.0), ("b", 9.0), ("a", 1.0)):
        account.note(client, wait)
    told = account.quantiles()
    assert (told["a"].count, told["a"].p99_ms, told["b"].p50_ms) == (2, 1.0, 9.0)


def test_the_client_inactive_for_longest_is_forgotten():
    """Made-up names push out those that are gone, not those that are active."""
    account = WaitAccount(max_clients=2)
    for client in ("a", "b", "a", "c"):
        account.note(client, 1.0)
    assert set(account.quantiles()) == {"a", "c"}


def test_another_thread_may_ask_amid_changes():
    """Books are read while clients come and go, and never in pieces."""
    waits, cache, recent = WaitAccount(max_clients=8), CacheAccount(), RecentRequests()
    is_over = threading.Event()

    def write() -> None:
        for number in range(4000):
            waits.note(f"client {number % 16}", 1.0)
            cache.note(Usage(1, cache=(CacheUse(KINDS[number % 3], OUTCOMES[number % 6], 1),)))
            recent.note(request([number, number % 7]), 0)
        is_over.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while not is_over.is_set():
            assert len(waits.quantiles()) <= 9
            assert sum(cache.totals().values()) <= 4000
            assert recent.share().num_tokens <= 2 * 257
    finally:
        writer.join()
    assert sum(cache.totals().values()) == 4000


# The latest requests


def test_an_empty_window_has_no_share():
    """All is 0 before the first request."""
    assert RecentRequests().share() == RecentShare(0, 0, 0)


def test_a_prefix_computed_twice_is_below_the_optimum():
    """Serving one after the other would have computed it once."""
    prefix = list(range(10))
    recent = window((request([*prefix, 20]), 0), (request([*prefix, 21]), 0))
    assert recent.share() == RecentShare(22, 0, 10)


def test_a_prefix_computed_once_is_the_optimum():
    """The second hit what the first computed."""
    prefix = list(range(10))
    recent = window((request([*prefix, 20]), 0), (request([*prefix, 21]), 10))
    assert recent.share() == RecentShare(22, 10, 10)


def test_what_was_cached_before_the_window_is_in_the_optimum():
    """A hit on something that nobody of the window computed was there already, for all."""
    prefix = list(range(10))
    recent = window((request([*prefix, 20]), 10), (request([*prefix, 21]), 10))
    assert recent.share() == RecentShare(22, 20, 20)


def test_what_was_cached_before_and_lost_meanwhile_counts_once():
    """Somebody computed it again, so the optimum does, once."""
    prefix = list(range(10))
    three = [(request([*prefix, 20 + k]), hits) for k, hits in enumerate((0, 0, 10))]
    assert window(*three).share() == RecentShare(33, 10, 20)


def test_an_answer_counts_as_cached():
    """The next turn of a conversation could hit the prompt and the answer before it."""
    first, second = request([1, 2, 3], answer=(4, 5)), request([1, 2, 3, 4, 5, 6, 7])
    assert window((first, 0), (second, 0)).share() == RecentShare(10, 0, 5)


def test_namespaces_share_nothing():
    """Equal prompts of two tenants are no missed hit."""
    keys = list(range(10))
    recent = window((request(keys, "a"), 0), (request(keys, "b"), 0))
    assert recent.share() == RecentShare(20, 0, 0)


def test_the_window_forgets_the_oldest():
    """By number, and by tokens of prompt and answer."""
    requests = [request([number, 1, 2, 3], answer=(5,)) for number in range(10)]
    pairs = [(one, 0) for one in requests]
    assert window(*pairs, max_requests=3).share().num_tokens == 12
    assert window(*pairs, max_tokens=11).share().num_tokens == 8


def test_a_request_too_large_for_the_window_is_not_kept():
    """The limit of tokens holds whatever comes."""
    small, large = request([1, 2]), request(list(range(50)))
    assert window((small, 0), (large, 0), max_tokens=20).share() == RecentShare()


def test_pages_bound_the_optimum():
    """A match of 10 tokens is one of 8 with pages of 4."""
    prefix = list(range(10))
    recent = window((request([*prefix, 20]), 0), (request([*prefix, 21]), 0), page_tokens=4)
    assert recent.share().optimal_hits == 8


@st.composite
def served(draw) -> list[tuple[ServedRequest, int]]:
    """Requests served as they came, by a cache that keeps all and sometimes forgets all."""
    prompts = st.lists(st.integers(0, 1), min_size=1, max_size=8)
    known: set[tuple[int, ...]] = set()
    pairs = []
    for keys, forgets in draw(st.lists(st.tuples(prompts, st.booleans()), max_size=12)):
        if forgets:
            known.clear()
        runs = list(itertools.accumulate(((key,) for key in keys), lambda a, b: a + b))
        hits = sum(run in known for run in runs[:-1])
        known.update(runs)
        pairs.append((request(keys), hits))
    return pairs


@given(served(), st.integers(0, 12))
def test_the_optimum_of_any_window_is_between_the_hits_and_all(pairs, num_before):
    """Whatever was served before, and with whatever luck."""
    told = window(*pairs[num_before:]).share()
    most = sum(one.limit for one, _ in pairs[num_before:])
    assert told.hits <= told.optimal_hits <= most


@given(served())
def test_a_window_with_nothing_before_it_has_the_plain_optimum(pairs):
    """Every hit is then explained by what the window itself computed."""
    told = window(*pairs).share()
    assert told.optimal_hits == optimal_hits([one for one, _ in pairs])


@pytest.mark.parametrize("number", [2, 3])
def test_the_share_is_told_anew_after_each_request(number):
    """An answer kept is not one that is out of date."""
    recent = RecentRequests()
    for turn in range(number):
        recent.note(request([1, 2, 3]), 2 if turn else 0)
        assert recent.share() == RecentShare(3 * (turn + 1), 2 * turn, 2 * turn)
        assert recent.share() is recent.share()
