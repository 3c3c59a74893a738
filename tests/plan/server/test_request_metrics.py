"""Histograms and counts of requests agree with what their clients count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.site import events_of

from mmserve.core import Output, Timing, Usage
from mmserve.server.histograms import BUCKETS, Cell, Histograms
from mmserve.server.visit import STAGES, Visit
from mmserve.server.watch.metrics_help import HELP

CHAT = "/v1/chat/completions"
SAID = {"role": "user", "content": "abc"}


def told(site: Any) -> dict[str, float]:
    """Every series of the page by its name and the values of its labels."""
    families = text_string_to_metric_families(site.http.get("/metrics").text)
    return {
        f"{s.name.removeprefix('mmserve_')}{sorted(s.labels.values())}": s.value
        for family in families
        for s in family.samples
        if "le" not in s.labels
    }


def grown(site: Any, before: dict[str, float], name: str, *labels: str) -> float:
    """By how much a series has grown."""
    key = f"{name}{sorted(labels)}"
    return told(site).get(key, 0.0) - before.get(key, 0.0)


@pytest.mark.parametrize("stream", [False, True])
def test_histograms_count_what_clients_count(site, stream: bool):
    """First tokens as answers, times between as tokens but the first, ends as answers."""
    before = told(site)
    for text in ("a", "abc", "abcdef"):
        response = site.chat(text, stream=stream)
        if stream:
            assert events_of(response)[-1] == "[DONE]"
    site.chat("x", n=0)
    for name, number in (
        ("time_to_first_token_seconds_count", 3),
        ("inter_token_seconds_count", 0 + 2 + 5),
        ("request_seconds_count", 3),
        ("queue_seconds_count", 3),
    ):
        assert grown(site, before, name, CHAT) == number, name


@pytest.mark.parametrize(
    ("path", "body", "num_answers"),
    [
        ("/v1/responses", {"input": "abc"}, 1),
        ("/v1/messages", {"messages": [SAID], "max_tokens": 9}, 1),
        ("/v1/systemone", {"state": "abc", "questions": [{"type": "yes_no"}] * 2}, 0),
    ],
)
def test_every_surface_that_asks_is_observed(site, path: str, body: dict, num_answers: int):
    """Ends as calls, first tokens as answers that have any."""
    before = told(site)
    assert site.http.post(path, json=body).status_code == 200
    assert grown(site, before, "request_seconds_count", path) == 1
    assert grown(site, before, "queue_seconds_count", path) >= 1
    assert grown(site, before, "stage_seconds_count", path, "prefill") >= 1
    assert grown(site, before, "time_to_first_token_seconds_count", path) == num_answers
    assert grown(site, before, "tokens_total", path, "prompt") > 0


def test_samples_are_counted_each(site):
    """Three answers of four tokens have nine times between tokens, and one first token."""
    before = told(site)
    site.chat("abcd", n=3)
    assert grown(site, before, "inter_token_seconds_count", CHAT) == 9
    assert grown(site, before, "time_to_first_token_seconds_count", CHAT) == 1
    assert grown(site, before, "stage_seconds_count", CHAT, "prefill") == 3


def test_stages_are_those_of_the_answer(site):
    """Milliseconds there, seconds here; media stages of a text count nowhere."""
    before = told(site)
    timing = site.chat("ab", return_timing=True).json()["mmserve"]["timing_ms"]
    spent = grown(site, before, "stage_seconds_sum", CHAT, "prefill")
    assert spent == pytest.approx(timing["prefill"] / 1e3)
    for stage in STAGES:
        counted = grown(site, before, "stage_seconds_count", CHAT, stage)
        assert counted == (stage in ("queue", "prefill", "decode_text")), stage


def test_tokens_are_those_of_usage(site):
    """By kind, each prompt once."""
    before = told(site)
    usage = site.chat("abcd", n=2).json()["usage"]
    details = usage["prompt_tokens_details"]
    for kind, number in (
        ("prompt", usage["prompt_tokens"]),
        ("completion", usage["completion_tokens"]),
        ("cached", details["cached_tokens"]),
        ("image", 0),
    ):
        assert grown(site, before, "tokens_total", CHAT, kind) == number, kind


def test_requests_are_counted_by_how_they_end(site):
    """By route, status and reason; the counter of responses stays."""
    before = told(site)
    site.chat("abc")
    site.chat("abc", max_tokens=1)
    site.chat("abc", n=0)
    site.http.get("/nope")
    site.http.get("/v1/files/file-x")
    site.http.get("/v1/responses/resp-x")
    site.http.get("/v1/responses/resp-x/input_items")
    site.http.get("/v1/models/a/b")
    site.http.get("/page/app.js")
    for labels in (
        (CHAT, "200", "stop"),
        (CHAT, "200", "length"),
        (CHAT, "400", "bad_request"),
        ("other", "404", "not_found"),
        ("/v1/files/{id}", "404", "not_found"),
        ("/v1/responses/{id}", "404", "not_found"),
        ("/v1/responses/{id}/input_items", "404", "not_found"),
        ("/v1/models/{name:path}", "404", "not_found"),
        ("/page/app.js", "200", "ok"),
    ):
        assert grown(site, before, "requests_total", *labels) == 1, labels
    assert grown(site, before, "http_requests_total", CHAT, "200") == 2


def test_an_answer_is_counted_before_it_is_read(site):
    """Whoever reads an answer and then the page finds it there, each time."""
    for stream in (False, True) * 20:
        before = told(site)
        site.chat("abc", stream=stream)
        assert grown(site, before, "request_seconds_count", CHAT) == 1


def test_every_histogram_says_what_it_means():
    """Its words are written down, its buckets grow, and there are few."""
    for name, bounds in BUCKETS.items():
        assert HELP[name]
        assert list(bounds) == sorted(set(bounds))
        assert len(bounds) <= 12
        assert name.endswith("_seconds")


@given(st.lists(st.floats(0, 100), max_size=30))
def test_buckets_hold_what_is_up_to_them(durations):
    """As a count by hand."""
    cell = Cell((0.5, 1, 10))
    for seconds in durations:
        cell.observe(seconds)
    by_hand = [sum(d <= float(bound) for d in durations) for bound, _ in cell.buckets()]
    assert [count for _, count in cell.buckets()] == by_hand
    assert cell.total_s == pytest.approx(sum(durations))


@given(st.lists(st.integers(0, 4), max_size=12))
def test_times_between_tokens_sum_up(sizes):
    """Whatever news tokens come in: n tokens have n - 1 times from the first to the last."""
    histograms = Histograms()
    call = Visit("id", "/r", "POST", histograms).follow("", 1, 1)
    for size in sizes:
        call.saw(0, Output("id", 0, "", tuple(range(size)), Usage(1)))
    cell = histograms.cell("inter_token_seconds", route="/r")
    assert cell.buckets()[-1][1] == max(0, sum(sizes) - 1)


def test_stages_are_those_of_timing():
    """None is missing, and no sum of others is among them."""
    assert {*STAGES, "first_token", "total"} == set(Timing.__dataclass_fields__)
