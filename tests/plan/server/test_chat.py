"""The chat route, whole answers."""

from __future__ import annotations

import pytest
from support.echo_client import TOKENS_PER_PICTURE

from mmserve.core import Busy, ContextTooLong, RunnerFailed, SamplingParams, TextPart, Turn

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_an_answer_has_openais_form(site) -> None:
    """Every field of the documented object is there, and nothing unexpected."""
    answer = site.chat("hey").json()
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "echo"
    assert answer["id"].startswith("chatcmpl-")
    choice = answer["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "hey", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None


def test_a_conversation_becomes_turns(site) -> None:
    """Closed turns in order, then an open one for the answer; no limit means to the end."""
    site.chat("hey", user="bob", cache_salt="s", priority=3)
    request = site.client.requests[0]
    assert request.parts == (
        Turn("user", (TextPart("hey"),)),
        Turn("assistant", (), is_open=True),
    )
    assert (request.client, request.cache_salt, request.priority) == ("bob", "s", 3)
    assert request.sampling == SamplingParams(max_new_tokens=None)


def test_usage_counts_pictures_and_adds_up(site) -> None:
    """Each picture adds the same, prompt and completion sum to the total."""
    counts = []
    for num_pictures in range(3):
        messages = [{"role": "user", "content": [PICTURE] * num_pictures}]
        usage = site.post("/v1/chat/completions", messages=messages).json()["usage"]
        counts.append(usage["prompt_tokens"])
        details = usage["prompt_tokens_details"]
        assert details["image_tokens"] == num_pictures * TOKENS_PER_PICTURE
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert counts[2] - counts[1] == counts[1] - counts[0] == TOKENS_PER_PICTURE


def test_samples_count_the_prompt_once(site) -> None:
    """Three choices with their indices; completions add up."""
    one, three = site.chat("abc").json(), site.chat("abc", n=3).json()
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    assert three["usage"]["completion_tokens"] == 9


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize(("limit", "count", "reason"), [(0, 0, "length"), (1, 1, "length")])
def test_limits_are_kept(site, field: str, limit: int, count: int, reason: str) -> None:
    """Zero and one token are served exactly, under both names."""
    answer = site.chat("abc", **{field: limit}).json()
    assert answer["usage"]["completion_tokens"] == count
    assert answer["choices"][0]["finish_reason"] == reason


def test_null_is_absent(site) -> None:
    """A null field asks for the same as no field."""
    site.chat("x")
    names = ["max_tokens", "temperature", "stop", "tools", "response_format", "user", "seed"]
    site.chat("x", **dict.fromkeys(names))
    first, second = site.client.requests
    assert (first.sampling, first.parts) == (second.sampling, second.parts)


def test_fields_without_effect_pass_at_their_neutral_value(site) -> None:
    """Clients that always send them are served."""
    neutral = {
        "store": False,
        "metadata": {"run": "1"},
        "parallel_tool_calls": True,
        "tools": [],
        "tool_choice": "none",
        "service_tier": "auto",
        "modalities": ["text"],
    }
    assert site.chat("x", **neutral).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tempature": 1}, "tempature"),
        ({"store": True}, "store"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"n": 0}, "n"),
        ({"n": 9223372036854775807}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "NaN"}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": 0}, "top_k"),
        ({"logprobs": True, "top_logprobs": 100000}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"191222": -100}}, "logit_bias"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ({"stream": "yes"}, "stream"),
        ({"seed": 1.5}, "seed"),
        ({"user": "x" * 1000}, "user"),
        ({"regex": "a", "choices": ["b"]}, "choices"),
        ({"messages": []}, "messages"),
        ({"num_frames": 0}, "num_frames"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_wrong_fields_are_refused_by_name(site, fields, param: str, is_stream: bool) -> None:
    """A 400 names the field, streaming or not, and the engine hears nothing."""
    is_about_stream = "stream" in param
    fields = fields if is_about_stream else {"stream": is_stream, **fields}
    assert site.refused(site.chat("x", **fields))["param"] == param
    assert site.client.requests == []


def test_missing_messages_are_refused(site) -> None:
    """Nothing to answer is no request."""
    error = site.refused(site.post("/v1/chat/completions", model="echo"))
    assert error["param"] == "messages"


def test_another_model_is_not_found(site) -> None:
    """404 names what is served; the name, the path and `default` are."""
    error = site.refused(site.chat("x", model="gpt-9"), 404)
    assert (error["param"], error["code"]) == ("model", "not_found")
    for name in ("echo", "/models/echo", "default", None):
        assert site.chat("x", model=name).status_code == 200


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ContextTooLong("the prompt has 999 tokens"), 400, "context_too_long"),
        (Busy("full", retry_after_s=2), 429, "busy"),
        (RunnerFailed("step 3 failed"), 500, "runner_failed"),
    ],
)
def test_refusals_of_the_engine_have_their_status(
    site, error, status: int, code: str, is_stream: bool
) -> None:
    """The same answer for a stream and a whole request, before any byte is sent."""
    site.client.refusals["no"] = error
    response = site.chat("no", stream=is_stream)
    assert site.refused(response, status)["code"] == code
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_failure_before_the_first_token_is_a_plain_error(site, is_stream: bool) -> None:
    """Nothing was sent yet, so the status tells it."""
    site.client.failures["x"] = (0, RunnerFailed("step 1 failed"))
    site.refused(site.chat("x", stream=is_stream), 500)


def test_logprobs_have_openais_form(site) -> None:
    """Token, number, bytes and the likeliest for every token; bytes join to the text."""
    answer = site.chat("é!", logprobs=True, top_logprobs=2).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(b for token in content for b in token["bytes"]).decode() == "é!"
    assert [len(token["top_logprobs"]) for token in content] == [2, 2, 2]
    assert set(content[0]["top_logprobs"][0]) == {"token", "logprob", "bytes"}
    assert all(token["logprob"] < 0 for token in content)


def test_stops_are_reported(site) -> None:
    """`matched_stop` is the text that ended the answer."""
    choice = site.chat("one two three", stop=[" two"]).json()["choices"][0]
    assert choice["message"]["content"] == "one"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", " two")


def test_timing_and_ids_come_when_asked(site) -> None:
    """Milliseconds by stage, prompt ids and answer ids."""
    answer = site.chat("ab", return_timing=True, return_token_ids=True).json()
    stages = {"fetch", "decode", "preprocess", "encode", "queue", "prefill", "decode_text"}
    assert stages <= set(answer["mmserve"]["timing_ms"])
    assert answer["choices"][0]["token_ids"] == [97, 98]
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]


def test_sampled_frames_are_told(site) -> None:
    """An answer about a clip says which frames were taken."""
    content = [{"type": "video_url", "video_url": "http://h/c.mp4"}]
    messages = [{"role": "user", "content": content}]
    answer = site.post("/v1/chat/completions", messages=messages).json()
    assert answer["mmserve"]["clips"] == [{"timestamps_s": [0.0, 0.5], "note": None}]
