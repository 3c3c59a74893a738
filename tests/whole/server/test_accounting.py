"""Hits, misses and waits of a real engine, as its users see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from support.checkpoints import tiny_llava

from mmserve.core import EngineConfig, SchedConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.engine.counters import sched_counters, shown_client
from mmserve.sched import SchedReport, Waits
from mmserve.server import RunningServer
from mmserve.server.watch.metrics_help import HELP

OF_THE_SUPERVISOR = {"engine_up", "engine_restarts_total"}
"""Told where the engine has a process of its own."""
STORY = "Once upon a time there was a radix tree. "


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A fresh server, so that all that is counted was asked here."""
    config = EngineConfig(model=str(tiny_llava()), num_slots=2048, threads=1, verify_steps=True)
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        yield http


def ask(http: httpx.Client, text: str, **fields: Any) -> dict[str, Any]:
    """A short completion that tells what the cache had."""
    asked = {"prompt": text, "max_tokens": 2, "return_timing": True, **fields}
    response = http.post("/v1/completions", json=asked)
    assert response.status_code == 200, response.text
    return response.json()


def series(http: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every series of the metrics page, by name and labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}


def prompt_tokens(http: httpx.Client) -> dict[str, float]:
    """Prompt tokens of text so far, by outcome."""
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in series(http).items()
        if name == "mmserve_prompt_tokens_total" and dict(labels)["kind"] == "text"
    }


def test_every_series_says_what_it_means(http):
    """No name of the page lacks its words, and none of the words lacks its name."""
    ask(http, STORY, user="alice")
    http.post("/v1/completions", json={"prompt": "a", "n": 0})
    families = list(text_string_to_metric_families(http.get("/metrics").text))
    told = {
        (family.name if family.type == "histogram" else family.samples[0].name).removeprefix(
            "mmserve_"
        ): family
        for family in families
    }
    assert set(told) == set(HELP) - OF_THE_SUPERVISOR
    assert all(family.documentation == HELP[name] for name, family in told.items())


def test_an_answers_outcomes_sum_up_to_its_prompt(http):
    """First time and second time; the second finds all but the last token."""
    text = f"{STORY}Sums."
    for _ in range(2):
        answer = ask(http, text)
        told = answer["mmserve"]["cache"]["text"]
        assert sum(told.values()) == answer["usage"]["prompt_tokens"]
        assert told.get("hit", 0) == answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert told == {"hit": answer["usage"]["prompt_tokens"] - 1, "boundary": 1}


def test_totals_grow_by_what_answers_tell(http):
    """The page's sums are those of the requests."""
    before = prompt_tokens(http)
    told = ask(http, f"{STORY}Totals.")["mmserve"]["cache"]["text"]
    after = prompt_tokens(http)
    assert {k: after[k] - before[k] for k in after if after[k] != before[k]} == told


def test_waits_are_told_by_client(http):
    """Users by name, however odd; salts and keys by digests."""
    odd = 'o"dd\n'
    secrets = ("sk-secret-key", "secret-salt")
    for user in ("zoe", odd, "z" * 100):
        ask(http, "a", user=user)
    ask(http, "a", cache_salt=secrets[1])
    asked = {"prompt": "a", "max_tokens": 1}
    http.post("/v1/completions", json=asked, headers={"Authorization": f"Bearer {secrets[0]}"})
    page = http.get("/metrics").text
    assert not [secret for secret in secrets if secret in page]
    found = {
        dict(labels)["client"]
        for name, labels in series(http)
        if name == "mmserve_client_queue_wait_ms"
    }
    assert {"zoe", shown_client(odd), shown_client("z" * 100)} <= found
    assert {name[:4] for name in found} >= {"key:", "salt"}
    assert all(len(name) <= 64 for name in found)


def test_recent_hits_stand_beside_their_optimum(http):
    """Served one after the other, nothing that could have hit did not."""
    for tail in ("a", "b", "c"):
        ask(http, STORY + tail)
    told = http.get("/server_info").json()["scheduler"]
    assert (told["policy"], told["eviction"], told["fairness"]) == (
        "longest-prefix",
        "lru",
        True,
    )
    assert 0 < told["recent_hit_rate"] <= told["recent_optimal_hit_rate"] < 1


@pytest.mark.parametrize("policy", ["fcfs", "random"])
def test_a_priority_that_no_policy_honours_is_refused(policy):
    """A 400 before the first byte of a stream, on every route; without it all is well."""
    config = EngineConfig(
        model=str(tiny_llava()), num_slots=1024, threads=1, sched=SchedConfig(policy=policy)
    )
    messages = [{"role": "user", "content": "hi"}]
    bodies = {
        "/v1/chat/completions": {"messages": messages, "max_tokens": 2},
        "/v1/completions": {"prompt": "hi", "max_tokens": 2},
        "/generate": {"text": "hi", "sampling_params": {"max_new_tokens": 2}},
    }
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for path, body in bodies.items():
            for is_stream in (False, True):
                asked = {**body, "stream": is_stream}
                refused = http.post(path, json={**asked, "priority": 1})
                assert refused.status_code == 400
                assert refused.json()["error"]["param"] == "priority"
                assert http.post(path, json=asked).status_code == 200


@given(st.text(max_size=80), st.text(max_size=80))
def test_labels_of_clients_are_printable_short_and_their_own(one, two):
    """Whatever callers make up."""
    shown = shown_client(one)
    assert shown.isprintable()
    assert len(shown) <= 64
    assert (shown == shown_client(two)) == (one == two)


def test_a_client_that_only_waits_is_told_without_quantiles():
    """It has waited for nothing yet that has ended."""
    report = SchedReport(waiting={"new": 3}, waits={"old": Waits(1, 2.0, 2.0)})
    named = sched_counters(report, SchedConfig())
    assert named['client_waiting{client="new"}'] == 3
    told = [key for key in named if key.startswith("client_queue_wait_ms")]
    assert all('client="old"' in key for key in told)
    assert len(told) == 2


def test_made_up_names_do_not_flood_the_page():
    """However many wait under names of their own, the page has a bounded number of series."""
    report = SchedReport(waiting={f"client {k}": 1 for k in range(10_000)})
    assert len(sched_counters(report, SchedConfig())) < 1000
