"""`/v1/messages`: what reaches the engine, and how whole answers and refusals are told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import (
    Busy,
    BytesSource,
    Constraint,
    ImagePart,
    RunnerFailed,
    ServerConfig,
    TextPart,
    ToolCall,
    Turn,
    UrlSource,
    VideoPart,
)
from mmserve.server import RunningServer

PATH = "/v1/messages"
PICTURE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Tells it.", "input_schema": SCHEMA}
USE = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}


def ask(site: Site, content: Any = "hello", **fields: Any) -> httpx.Response:
    """One user message, of at most 64 tokens."""
    messages = [{"role": "user", "content": content}]
    return site.post(PATH, **{"messages": messages, "max_tokens": 64, **fields})


def parts_of(site: Site, **fields: Any) -> tuple[Any, ...]:
    """The turns that a good request becomes."""
    response = ask(site, **fields)
    assert response.status_code == 200, response.text
    return site.client.requests[-1].parts


def refused(response: httpx.Response, status: int = 400) -> dict[str, str]:
    """The error of a refusal, checked for its form."""
    body = response.json()
    assert (response.status_code, body["type"]) == (status, "error"), body
    assert set(body) == {"type", "error", "request_id"}
    assert body["request_id"] == response.headers["request-id"]
    assert set(body["error"]) == {"type", "message"}
    return body["error"]


def test_a_message_is_answered(site: Site) -> None:
    """The message object of Anthropic, with its usage and an id in body and headers."""
    response = ask(site, model="echo")
    answer = response.json()
    assert answer["id"].startswith("msg_")
    assert response.headers["request-id"] == answer.pop("id")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": "hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": len("[user]hello[assistant]"),
            "cache_read_input_tokens": 1,
            "cache_creation_input_tokens": 0,
            "output_tokens": 5,
            "input_tokens_details": {"image_tokens": 0, "video_tokens": 0},
        },
    }


@pytest.mark.parametrize(
    ("fields", "reason", "matched", "text"),
    [
        ({"max_tokens": 3}, "max_tokens", None, "hel"),
        ({"max_tokens": 0}, "max_tokens", None, None),
        ({"stop_sequences": ["x", "lo"]}, "stop_sequence", "lo", "hel"),
        ({}, "end_turn", None, "hello"),
    ],
)
def test_why_an_answer_ends(
    site: Site, fields: dict[str, Any], reason: str, matched: str | None, text: str | None
) -> None:
    """Length, a stop sequence, or the model's own end; an empty answer has no block."""
    answer = ask(site, **fields).json()
    assert (answer["stop_reason"], answer["stop_sequence"]) == (reason, matched)
    assert answer["content"] == ([{"type": "text", "text": text}] if text else [])


def test_system_and_roles_become_turns(site: Site) -> None:
    """The system stands first, as text or blocks, and the answer's turn is open."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    blocks = [{"type": "text", "text": "be", "cache_control": mark}]
    for system in ("be", blocks):
        assert parts_of(site, system=system, cache_control=mark) == (
            Turn("system", (TextPart("be"),)),
            Turn("user", (TextPart("hello"),)),
            Turn("assistant", (), is_open=True),
        )


def test_messages_of_one_role_are_one_turn(site: Site) -> None:
    """A line apart, as chat templates may want roles to alternate."""
    messages = [{"role": "user", "content": text} for text in ("a", "b")]
    assert parts_of(site, messages=messages)[0] == Turn(
        "user", (TextPart("a"), TextPart("\n"), TextPart("b"))
    )


def test_an_assistant_message_at_the_end_is_continued(site: Site) -> None:
    """Its turn is open, and no other follows."""
    messages = [
        {"role": "user", "content": "colour?"},
        {"role": "assistant", "content": "It is"},
    ]
    assert parts_of(site, messages=messages) == (
        Turn("user", (TextPart("colour?"),)),
        Turn("assistant", (TextPart("It is"),), is_open=True),
    )


def test_pictures_of_all_sources(site: Site) -> None:
    """Base64, an address, and a file sent before; clips as in chat."""
    sent = site.http.post(
        "/v1/files", files={"file": ("a.png", b"PNG")}, data={"purpose": "vision"}
    )
    url = "https://example.org/a.png"
    sources = [
        PICTURE,
        {"type": "url", "url": url},
        {"type": "file", "file_id": sent.json()["id"]},
    ]
    content: list[dict[str, Any]] = [{"type": "image", "source": one} for one in sources]
    content.append({"type": "video_url", "video_url": {"url": url, "num_frames": 2}})
    (turn, _) = parts_of(site, content=content, max_pixels=4096)
    assert turn.parts == (
        ImagePart(UrlSource("data:image/png;base64,AAAA"), 4096),
        ImagePart(UrlSource(url), 4096),
        ImagePart(BytesSource(b"PNG"), 4096),
        VideoPart(UrlSource(url), num_frames=2, max_pixels=4096),
    )


def test_results_of_tools_are_turns(site: Site) -> None:
    """With text and pictures in them, and what the user says beside them behind."""
    result = [{"type": "text", "text": "Rain."}, {"type": "image", "source": PICTURE}]
    content = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": result},
        {"type": "text", "text": "And?"},
    ]
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Let me see."}, USE]},
        {"role": "user", "content": content},
    ]
    picture = ImagePart(UrlSource("data:image/png;base64,AAAA"))
    call = ToolCall("toolu_1", "weather", '{"city": "Oslo"}')
    assert parts_of(site, messages=messages)[1:-1] == (
        Turn("assistant", (TextPart("Let me see."),), tool_calls=(call,)),
        Turn("tool", (TextPart("Rain."), picture), tool_call_id="toolu_1"),
        Turn("user", (TextPart("And?"),)),
    )


def test_failed_tools_say_so(site: Site) -> None:
    """The model sees that a result is an error."""
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "no",
        "is_error": True,
    }
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [USE]},
        {"role": "user", "content": [result]},
    ]
    assert parts_of(site, messages=messages)[2].parts == (TextPart("Error: "), TextPart("no"))


def test_parameters_reach_the_engine(site: Site) -> None:
    """Anthropic's, and those of mmserve that chat has."""
    response = ask(
        site,
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        stop_sequences=["a", "b"],
        metadata={"user_id": "alice"},
        service_tier="auto",
        thinking={"type": "disabled"},
        min_p=0.1,
        seed=3,
        stop_token_ids=[5],
        cache_salt="s",
        priority=2,
    )
    assert response.status_code == 200, response.text
    request = site.client.requests[-1]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 7)
    assert (sampling.max_new_tokens, sampling.stop) == (64, ("a", "b"))
    assert (sampling.min_p, sampling.seed, sampling.stop_token_ids) == (0.1, 3, (5,))
    assert (request.client, request.cache_salt, request.priority) == ("alice", "s", 2)


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        ({"regex": "h.*"}, Constraint("regex", "h.*")),
        (
            {
                "output_config": {
                    "format": {"type": "json_schema", "schema": {"type": "string"}}
                }
            },
            Constraint("json_schema", '{"type": "string"}'),
        ),
    ],
)
def test_forms_reach_the_engine(site: Site, fields: dict[str, Any], want: Constraint) -> None:
    """By the extras and by `output_config`."""
    assert ask(site, **fields).status_code == 200
    assert site.client.requests[-1].sampling.constraint == want


CALL = '{"name": "weather", "arguments": {"city": "Oslo"}}'


@pytest.mark.parametrize(
    ("choice", "said", "is_forced"),
    [
        (None, f"<tool_call>{CALL}</tool_call>", False),
        ({"type": "auto", "disable_parallel_tool_use": True}, f"[{CALL}, {CALL}]", False),
        ({"type": "any"}, CALL, True),
        ({"type": "tool", "name": "weather"}, '{"city": "Oslo"}', True),
    ],
)
def test_calls_are_blocks(site: Site, choice: Any, said: str, is_forced: bool) -> None:
    """Whoever chose it, a call is one tool_use with its input, and the reason to stop."""
    site.client.answers["hello"] = said
    answer = ask(site, tools=[WEATHER], tool_choice=choice, max_tokens=400).json()
    (block,) = answer["content"]
    assert block.pop("id").startswith("toolu_")
    assert block == {"type": "tool_use", "name": "weather", "input": {"city": "Oslo"}}
    assert answer["stop_reason"] == "tool_use"
    request = site.client.requests[-1]
    assert (request.sampling.constraint is not None) == is_forced
    assert len(request.tools) == 1


def test_several_calls_are_several_blocks(site: Site) -> None:
    """Each with an id of its own."""
    site.client.answers["hello"] = f"[{CALL}, {CALL}]"
    content = ask(site, tools=[WEATHER], max_tokens=400).json()["content"]
    assert [block["type"] for block in content] == ["tool_use", "tool_use"]
    assert content[0]["id"] != content[1]["id"]


def test_a_call_that_is_cut_has_no_input(site: Site) -> None:
    """It ended for its length, and says so."""
    site.client.answers["hello"] = CALL
    choice = {"type": "any"}
    answer = ask(site, tools=[WEATHER], tool_choice=choice, max_tokens=40).json()
    assert answer["stop_reason"] == "max_tokens"
    assert [block["input"] for block in answer["content"]] == [{}]


def test_text_beside_tools_is_text(site: Site) -> None:
    """And tools that may not be called are not shown."""
    answer = ask(site, tools=[WEATHER]).json()
    assert answer["content"] == [{"type": "text", "text": "hello"}]
    assert answer["stop_reason"] == "end_turn"
    assert ask(site, tools=[WEATHER], tool_choice={"type": "none"}).status_code == 200
    assert site.client.requests[-1].tools == ()


def test_extras_are_told(site: Site) -> None:
    """Timing and cache by `return_timing`, ids by `return_token_ids`."""
    answer = ask(site, return_timing=True, return_token_ids=True).json()
    assert answer["mmserve"]["timing_ms"]["total"] == 2.5
    assert answer["mmserve"]["cache"]["text"]["hit"] == 1
    assert bytes(answer["token_ids"]) == b"hello"
    assert bytes(answer["prompt_token_ids"][1:]) == b"[user]hello[assistant]"


def test_tokens_are_counted(site: Site) -> None:
    """Of the prompt as it would be sent, pictures and tools included; nothing is generated."""
    content = [{"type": "text", "text": "hello"}, {"type": "image", "source": PICTURE}]
    messages = [{"role": "user", "content": content}]
    fields = {"messages": messages, "tools": [WEATHER], "system": "be"}
    response = site.post(f"{PATH}/count_tokens", model="echo", **fields)
    assert response.json() == {"input_tokens": 1 + len("[system]be[user]hello[assistant]") + 4}
    assert site.client.tickets[-1].is_cancelled


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens is missing"),
    ({"max_tokens": -1}, "max_tokens is -1"),
    ({"messages": []}, "messages is a list of 0"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing"),
    ({"tempature": 1}, "unknown field tempature. hint: did you mean temperature?"),
    ({"n": 2}, "n is 2"),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type"),
    ({"service_tier": "priority"}, "service_tier"),
    ({"cache_control": {"type": "for ever"}}, "cache_control.type"),
    ({"content": [{"type": "document", "source": {}}]}, "messages[0].content[0].type"),
    ({"content": [{"type": "text", "text": "a", "x": 1}]}, "messages[0].content[0].x"),
    ({"content": [{"type": "image", "source": {"type": "text"}}]}, "content[0].source.type"),
    ({"content": [{"type": "tool_result", "tool_use_id": "toolu_9"}]}, "messages[0].content"),
    ({"tools": [{"name": "a"}]}, "tools[0].input_schema is missing"),
    ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "tools[0].name"),
    ({"tools": [WEATHER, WEATHER]}, "tools[1].name is weather"),
    ({"tools": [{"type": "web_search_20260209", "name": "web_search"}]}, "tools[0].type"),
    ({"tool_choice": {"type": "any"}}, "tool_choice asks for a call"),
    ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "any"}, "regex": "a"},
        "tool_choice and regex",
    ),
    ({"stop_sequences": [""]}, "stop_sequences holds an empty text"),
    ({"metadata": {"user": "x"}}, "metadata.user"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "words"), BAD)
def test_bad_requests_name_the_field(
    site: Site, fields: dict[str, Any], words: str, stream: bool
) -> None:
    """A 400 in Anthropic's envelope, streaming or not, and nothing reaches the engine."""
    error = refused(ask(site, stream=stream, **fields))
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert site.client.requests == []


def test_a_conversation_cannot_end_with_a_call(site: Site) -> None:
    """Its result must follow."""
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": [USE]},
    ]
    assert "messages[1]" in refused(ask(site, messages=messages))["message"]


def test_things_that_are_not_there_are_404(site: Site) -> None:
    """A model, a file, and a path below."""
    assert refused(ask(site, model="other"), 404)["type"] == "not_found_error"
    source = {"type": "file", "file_id": "file-" + "0" * 32}
    error = refused(ask(site, [{"type": "image", "source": source}]), 404)
    assert error["type"] == "not_found_error"
    assert refused(site.post(f"{PATH}/batches"), 404)["type"] == "not_found_error"


def test_busy_and_broken_engines(site: Site) -> None:
    """429 with the time to wait, 500 without a word of what is inside."""
    site.client.refusals["hello"] = Busy("full", retry_after_s=7)
    response = ask(site)
    assert refused(response, 429)["type"] == "rate_limit_error"
    assert response.headers["Retry-After"] == "7"
    site.client.refusals["hello"] = RunnerFailed("secret")
    error = refused(ask(site), 500)
    assert error["type"] == "api_error"
    assert "secret" not in error["message"]


def test_large_and_broken_bodies(site: Site) -> None:
    """413 and 400 in the same envelope."""
    large = site.http.post(PATH, content=b'{"a": "' + b"a" * 300_000 + b'"}')
    assert refused(large, 413)["type"] == "request_too_large"
    assert refused(site.http.post(PATH, content=b"{"))["type"] == "invalid_request_error"
    assert refused(site.http.get(PATH), 405)["type"] == "invalid_request_error"


def test_the_key_is_asked_for() -> None:
    """`x-api-key` opens; without it a 401 in Anthropic's envelope, other paths keep theirs."""
    config = ServerConfig(port=0, api_key="sesame")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        headers = {"x-api-key": "sesame", "anthropic-version": "2023-06-01"}
        assert http.post(PATH, json=body, headers=headers).status_code == 200
        error = refused(http.post(PATH, json=body, headers={"x-api-key": "x"}), 401)
        assert error["type"] == "authentication_error"
        assert set(http.post("/v1/completions", json={}).json()) == {"error"}
