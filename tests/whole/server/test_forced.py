"""Forced tokens over HTTP: counted in usage, marked among log-probabilities, everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

REGEX = r'\{"colour": "(red|green)", "size": [0-9]\}'
CHAT = {"model": "tiny", "max_tokens": 60, "regex": REGEX, "temperature": 0}


def events(response: httpx.Response) -> Iterator[dict]:
    """Objects of an event stream."""
    for line in response.text.splitlines():
        if line.startswith("data: {"):
            yield json.loads(line[len("data: ") :])


def chat(url: str, **extra: object) -> httpx.Response:
    """A chat answer under the pattern."""
    body = {**CHAT, "messages": [{"role": "user", "content": "which one?"}], **extra}
    response = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 200, response.text
    return response


def test_chat_marks_forced_tokens(server_url):
    """The log-probability of a forced token says so, streamed or not; usage counts them."""
    whole = chat(server_url, logprobs=True, top_logprobs=2).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    forced = [entry.get("forced", False) for entry in entries]
    assert 0 < sum(forced) < len(forced)
    details = whole["usage"]["completion_tokens_details"]
    assert 0 < details["forced_tokens"] <= sum(forced)
    assert whole["usage"]["completion_tokens"] == len(entries)
    streamed = [
        *events(chat(server_url, logprobs=True, top_logprobs=2, stream=True)),
    ]
    pieces = [event["choices"][0] for event in streamed if event["choices"]]
    told = [
        entry for piece in pieces for entry in (piece["logprobs"] or {}).get("content") or ()
    ]
    assert [entry["token"] for entry in told] == [entry["token"] for entry in entries]
    assert [entry.get("forced", False) for entry in told] == forced
    text = "".join(piece["delta"].get("content") or "" for piece in pieces)
    assert text == whole["choices"][0]["message"]["content"]
    assert "".join(entry["token"] for entry in told) == text


def test_free_answers_mark_nothing(server_url):
    """Without a constraint there is no mark, and usage counts none."""
    whole = chat(server_url, logprobs=True, regex=None, max_tokens=4).json()
    entries = whole["choices"][0]["logprobs"]["content"]
    assert not any("forced" in entry for entry in entries)
    assert whole["usage"]["completion_tokens_details"] == {"forced_tokens": 0}


def test_completions_have_a_column(server_url):
    """The table of log-probabilities has a column for it under a constraint."""
    body = {**CHAT, "prompt": "which one?", "logprobs": 1}
    answer = httpx.post(f"{server_url}/v1/completions", json=body, timeout=60).json()
    table = answer["choices"][0]["logprobs"]
    assert len(table["forced"]) == len(table["tokens"])
    assert any(table["forced"])
    assert all(value is not None for value in table["token_logprobs"])


@pytest.mark.parametrize("stream", [False, True])
def test_generate_lists_them(server_url, stream):
    """The native surface counts forced tokens and marks each of the answer's."""
    body = {
        "text": "which one?",
        "sampling_params": {"regex": REGEX, "temperature": 0, "max_new_tokens": 60},
        "return_logprob": True,
        "stream": stream,
    }
    response = httpx.post(f"{server_url}/generate", json=body, timeout=60)
    meta = ([*events(response)][-1] if stream else response.json())["meta_info"]
    assert len(meta["output_token_forced"]) == meta["completion_tokens"]
    assert 0 < meta["forced_tokens"] <= sum(meta["output_token_forced"])
    assert all(logprob is not None for logprob, *_ in meta["output_token_logprobs"])


def test_a_prompt_is_healed_over_http(server_url):
    """`heal_prompt` lets an answer go on inside the prompt's last token."""
    body = {
        "model": "tiny",
        "prompt": "the red ta",
        "max_tokens": 20,
        "heal_prompt": True,
        "regex": "ble is (red|blue)",
    }
    answer = httpx.post(f"{server_url}/v1/completions", json=body, timeout=60).json()
    assert answer["choices"][0]["text"].startswith("ble is ")
    plain = httpx.post(
        f"{server_url}/v1/completions", json={**body, "heal_prompt": False}, timeout=60
    ).json()
    assert answer["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] - 1
