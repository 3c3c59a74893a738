"""Streams of a real engine: stop texts never leak, pieces join to the whole."""

from __future__ import annotations

import json
import re

import httpx

ASKED = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}


def streamed(server_url: str, **fields: object) -> tuple[list[str], dict]:
    """Pieces of text, and the last choice of a stream."""
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], **ASKED, **fields}
    response = httpx.post(f"{server_url}/v1/chat/completions", json={**body, "stream": True})
    assert response.status_code == 200, response.text
    words = response.text.split("\n\n")[:-2]
    choices = [json.loads(w.removeprefix("data: "))["choices"][0] for w in words]
    return [c["delta"].get("content", "") for c in choices], choices[-1]


def whole(server_url: str, **fields: object) -> dict:
    """The same question, unstreamed."""
    body = {"messages": [{"role": "user", "content": "Tell me a story."}], **ASKED, **fields}
    response = httpx.post(f"{server_url}/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_stop_patterns_end_answers_both_ways(server_url: str) -> None:
    """A match ends the answer before it, whole and streamed, and is named by its pattern."""
    text = whole(server_url)["choices"][0]["message"]["content"]
    for start in range(3, 39, 7):
        pattern = "Q{9}|" + re.escape(text[start : start + 3])
        want = text[: text.index(text[start : start + 3])]
        choice = whole(server_url, stop_regex=pattern)["choices"][0]
        assert choice["message"]["content"] == want
        assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", pattern)
        pieces, last = streamed(server_url, stop_regex=pattern)
        assert ("".join(pieces), last["matched_stop"]) == (want, pattern)


def test_a_stop_pattern_that_no_automaton_holds_is_refused(server_url: str) -> None:
    """A look-around is a 400 that names the field and the feature."""
    body = {"prompt": "a", "stop_regex": "a(?=b)"}
    answer = httpx.post(f"{server_url}/v1/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "stop_regex")
    assert "look-around" in error["message"]


def test_stop_texts_never_leak(server_url: str) -> None:
    """Wherever the stop text lies, both ways give exactly the text before its first place."""
    text = whole(server_url)["choices"][0]["message"]["content"]
    pieces, _ = streamed(server_url)
    assert "".join(pieces) == text
    assert len(text) > 40
    for start in range(3, 39, 7):
        stop = text[start : start + 2 + start % 9]
        want = text[: text.index(stop)]
        answer = whole(server_url, stop=[stop])
        choice = answer["choices"][0]
        assert choice["message"]["content"] == want
        assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)
        pieces, last = streamed(server_url, stop=[stop])
        assert "".join(pieces) == want
        assert last["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] <= 60
