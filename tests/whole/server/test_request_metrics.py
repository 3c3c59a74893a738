"""Histograms of a real engine's requests agree with what their client counts and is told."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.checkpoints import tiny_llava
from support.live import picture

from mmserve.core import EngineConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

CHAT = "/v1/chat/completions"
MEDIA_STAGES = ("fetch", "decode", "preprocess", "encode")


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


def told(http: httpx.Client) -> dict[tuple[str, frozenset[str]], float]:
    """Every series of the page that is no bucket, by name and values of labels."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        (s.name.removeprefix("mmserve_"), frozenset(s.labels.values())): s.value
        for family in families
        for s in family.samples
        if "le" not in s.labels
    }


def body(content: Any, **fields: Any) -> dict[str, Any]:
    """A conversation of one turn, answered with exactly 8 tokens."""
    messages = [{"role": "user", "content": content}]
    asked = {"messages": messages, "max_tokens": 8, "ignore_eos": True, "return_timing": True}
    return {**asked, **fields}


def grown(http: httpx.Client, before: dict, name: str, *labels: str) -> float:
    """By how much a series has grown."""
    key = name, frozenset(labels)
    return told(http).get(key, 0.0) - before.get(key, 0.0)


def test_a_stream_is_counted_as_its_reader_counts_it(http):
    """Tokens, and no more time than has passed for the reader."""
    before, started_s = told(http), time.monotonic()
    asked = body("Count.", stream=True, return_token_ids=True)
    asked["stream_options"] = {"include_usage": True}
    num_tokens = 0
    with http.stream("POST", CHAT, json=asked) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                chunk = json.loads(line.removeprefix("data: "))
                for choice in chunk["choices"]:
                    num_tokens += len(choice.get("token_ids", ()))
                usage = chunk["usage"]
    passed_s = time.monotonic() - started_s
    assert num_tokens == usage["completion_tokens"] == 8
    assert grown(http, before, "inter_token_seconds_count", CHAT) == num_tokens - 1
    assert grown(http, before, "time_to_first_token_seconds_count", CHAT) == 1
    assert grown(http, before, "request_seconds_count", CHAT) == 1
    first_s = grown(http, before, "time_to_first_token_seconds_sum", CHAT)
    between_s = grown(http, before, "inter_token_seconds_sum", CHAT)
    whole_s = grown(http, before, "request_seconds_sum", CHAT)
    assert 0 < first_s + between_s <= whole_s <= passed_s
    assert grown(http, before, "tokens_total", CHAT, "completion") == num_tokens
    assert grown(http, before, "tokens_total", CHAT, "prompt") == usage["prompt_tokens"]


def test_stages_are_what_answers_tell(http):
    """The same milliseconds, of a picture's stages, too."""
    url = f"data:image/png;base64,{base64.b64encode(picture(1)).decode()}"
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": "What?"}]
    before = told(http)
    answer = http.post(CHAT, json=body(content)).json()
    timing = answer["mmserve"]["timing_ms"]
    assert timing["encode"] > 0
    for stage in (*MEDIA_STAGES, "queue", "prefill", "decode_text"):
        spent_s = grown(http, before, "stage_seconds_sum", CHAT, stage)
        assert spent_s == pytest.approx(timing[stage] / 1e3, abs=1e-6), stage
    assert grown(http, before, "queue_seconds_sum", CHAT) == pytest.approx(
        timing["queue"] / 1e3, abs=1e-6
    )


def test_cached_tokens_are_those_of_usage(http):
    """Nothing at first, nearly all the second time."""
    for _ in range(2):
        before = told(http)
        usage = http.post(CHAT, json=body("Once upon a time.", n=2)).json()["usage"]
        for kind, number in (
            ("cached", usage["prompt_tokens_details"]["cached_tokens"]),
            ("prompt", usage["prompt_tokens"]),
            ("completion", usage["completion_tokens"]),
        ):
            assert grown(http, before, "tokens_total", CHAT, kind) == number
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


def test_keys_share_nothing_when_each_has_a_cache_of_its_own():
    """The second of two keys finds nothing of the first one's prompt, and its own again."""
    config = EngineConfig(model=str(tiny_llava()), num_slots=2048, threads=1, verify_steps=True)
    keys = (("bob", "sk-bob"), ("eve", "sk-eve"))
    cached = []
    with (
        Engine.from_config(config) as engine,
        RunningServer(
            engine, ServerConfig(port=0, client_keys=keys, namespace_by_key=True)
        ) as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
    ):
        for key in ("sk-bob", "sk-bob", "sk-eve", "sk-eve"):
            headers = {"Authorization": f"Bearer {key}"}
            answer = http.post(CHAT, json=body("A secret plan."), headers=headers).json()
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] == cached[3] > 0
