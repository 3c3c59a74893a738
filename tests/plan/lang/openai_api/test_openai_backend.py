"""Making the OpenAI backend, what it sends to the chat API, and what comes back."""

from __future__ import annotations

import base64
import sys
import threading

import pytest
from support.openai_programs import SCHEMA, TEMPLATE, P, Q, asking, chunk, run

import mmserve as sgl
from mmserve.core import BackendFailed, BadRequest, MissingExtra, UnsupportedByBackend


def test_pictures_stand_where_the_program_put_them(script, scripted):
    """Parts A P B Q ? in this order, pictures as data URLs."""

    def body(s):
        s += sgl.user("A" + sgl.image(P) + "B" + sgl.image(Q) + "?")
        s += sgl.assistant(sgl.gen("x"))

    script.rule = lambda path, body: [chunk("a", "stop"), "[DONE]"]
    assert run(scripted, body)["x"] == "a"
    urls = [f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in (P, Q)]

    path, sent = script.bodies[0]
    assert path == "/chat/completions"
    assert sent["messages"] == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "A"},
                {"type": "image_url", "image_url": {"url": urls[0]}},
                {"type": "text", "text": "B"},
                {"type": "image_url", "image_url": {"url": urls[1]}},
                {"type": "text", "text": "?"},
            ],
        }
    ]


def test_addresses_of_pictures_are_for_the_server(script, scripted):
    """An http address goes as it is."""

    def body(s):
        s += sgl.user(sgl.image("http://host/p.png")) + sgl.assistant(sgl.gen("x"))

    script.rule = lambda path, body: [chunk("a", "stop"), "[DONE]"]
    run(scripted, body).sync()

    (message,) = script.bodies[0][1]["messages"]
    assert message["content"][0]["image_url"] == {"url": "http://host/p.png"}


def test_earlier_turns_are_in_every_call(chat, echo):
    """The system turn too; an answer becomes a turn of the assistant."""

    def body(s):
        s += sgl.system("S")
        s += sgl.user("one") + sgl.assistant(sgl.gen("x"))
        s += sgl.user("two") + sgl.assistant(sgl.gen("y"))

    state = run(chat, body)

    assert (state["x"], state["y"]) == ("one", "two")
    turns = [
        (turn.role, "".join(part.text for part in turn.parts))
        for turn in echo.requests[1].parts
    ]
    assert turns == [
        ("system", "S"),
        ("user", "one"),
        ("assistant", "one"),
        ("user", "two"),
        ("assistant", ""),
    ]


def test_values_travel_under_openais_names(script, scripted):
    """Streamed with usage; inherited defaults that change nothing are not sent."""
    script.rule = lambda path, body: [chunk("a", "stop", 0), chunk("b", "stop", 1), "[DONE]"]
    body = asking(
        n=2,
        stop=["x", "y"],
        seed=3,
        frequency_penalty=0.5,
        presence_penalty=-1,
        json_schema=SCHEMA,
    )
    state = run(scripted, body, temperature=0.5, top_p=0.9, max_new_tokens=7)

    assert state["x"] == ["a", "b"]
    sent = script.bodies[0][1]
    sent.pop("messages")
    assert sent == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "n": 2,
        "stop": ["x", "y"],
        "seed": 3,
        "frequency_penalty": 0.5,
        "presence_penalty": -1,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
        },
    }


@pytest.mark.parametrize("model", ["o1-mini", "o3", "o4-mini", "gpt-5"])
def test_reasoning_models_have_their_own_word_for_the_length(script, model):
    """And get no sampling values that are left at their defaults, which they refuse."""
    script.rule = lambda path, body: [chunk("a", "stop"), "[DONE]"]
    with sgl.OpenAI(model, api_key="k", base_url=script.url) as backend:
        run(backend, asking(max_tokens=5)).sync()

    sent = script.bodies[0][1]
    assert sent["max_completion_tokens"] == 5
    assert not {"max_tokens", "temperature", "top_p"} & set(sent)


def test_extensions_travel_under_our_servers_names(url, echo):
    """A server of ours takes all of them, and an engine is asked as by RuntimeEndpoint."""
    values = {
        "top_k": 5,
        "min_p": 0.1,
        "min_tokens": 1,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "repetition_penalty": 1.5,
        "regex": "[a-z]+",
    }
    options = {"cache_salt": "tenant", "priority": 3}
    names = (*values, *options)
    with sgl.OpenAI("echo", api_key="k", base_url=url, extensions=names) as backend:
        run(backend, asking(**values), **options).sync()
    with sgl.RuntimeEndpoint(url.removesuffix("/v1")) as endpoint:
        run(endpoint, asking(**values), **options).sync()

    first, second = echo.requests
    assert first.sampling == second.sampling
    assert (first.cache_salt, first.priority) == ("tenant", 3)
    assert first.parts == second.parts


def test_bounds_of_pictures_are_sent_or_refused(url, echo, chat):
    """They are not OpenAI's; never dropped unsaid."""

    def body(s):
        s += sgl.user(sgl.image(P, max_pixels=100)) + sgl.assistant(sgl.gen("x"))

    with pytest.raises(UnsupportedByBackend, match="max_pixels"):
        run(chat, body)
    with sgl.OpenAI("echo", api_key="k", base_url=url, extensions=["max_pixels"]) as backend:
        run(backend, body).sync()

    (picture,) = echo.requests[0].parts[0].parts
    assert picture.max_pixels == 100


def test_an_answer_has_usage_and_an_end(chat):
    """Meta info as the API told it; token_usage adds up."""
    state = run(chat, asking("hello"))
    meta = state.get_meta_info("x")
    run(chat, asking("hi")).sync()

    assert meta["finish_reason"]["type"] == "stop"
    assert (meta["completion_tokens"], meta["cached_tokens"]) == (5, 1)
    assert meta["prompt_tokens"] == len("[user]hello[assistant]") + 1
    assert meta["e2e_latency"] > 0
    assert chat.token_usage.completion_tokens == 7
    assert chat.token_usage.prompt_tokens == 2 * meta["prompt_tokens"] - 3


def test_an_answer_that_is_cut_says_length(chat):
    """And how long it is."""
    reason = run(chat, asking("hello", max_tokens=2)).get_meta_info("x")["finish_reason"]

    assert reason == {"type": "length", "length": 2}


@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_several_answers_come_in_one_call(request, echo, kind):
    """N = 2: a list, by index; tokens are counted once."""
    backend = request.getfixturevalue(kind)

    def body(s):
        with s.user() if kind == "chat" else s.var_scope("v"):
            s += "hello"
        with s.assistant() if kind == "chat" else s.var_scope("w"):
            s += sgl.gen("x", n=2, max_tokens=3)

    state = run(backend, body)

    assert state["x"] == ["hel", "hel"]
    assert len(echo.requests) == 1
    assert state.usage().completion_tokens == backend.token_usage.completion_tokens == 6


@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_numbers_of_the_answer_are_reported(request, kind):
    """Log-probability and text of each token; these APIs tell no ids."""
    backend = request.getfixturevalue(kind)
    wanted = {"return_logprob": True, "top_logprobs_num": 2, "return_text_in_logprobs": True}

    def body(s):
        with s.user() if kind == "chat" else s.var_scope("v"):
            s += "hello"
        with s.assistant() if kind == "chat" else s.var_scope("w"):
            s += sgl.gen("x", max_tokens=2, **wanted)

    meta = run(backend, body).get_meta_info("x")

    assert meta["output_token_logprobs"] == [[-0.875, -1, "h"], [-0.5, -1, "e"]]
    assert meta["output_top_logprobs"][0] == [[-0.125, -1, "\x00"], [-0.25, -1, "\x01"]]


def test_text_streams_as_it_comes(script, scripted):
    """A reader has the first piece before the last one is sent."""
    go_on = threading.Event()
    script.rule = lambda path, body: [chunk("on"), go_on, chunk("e\u2028", "stop"), "[DONE]"]
    pieces = run(scripted, asking(), stream=True).text_iter("x")

    assert next(pieces) == "on"
    go_on.set()
    assert list(pieces) == ["e\u2028"]


def test_forks_ask_nothing_for_their_prefix(chat, echo, monkeypatch):
    """An API has no call that generates nothing: only the children's calls are made."""
    started = []
    start = chat.start
    monkeypatch.setattr(
        chat, "start", lambda request: started.append(request) or start(request)
    )

    def body(s):
        s += sgl.user_begin() + "long "
        forks = s.fork(2)
        forks += lambda index: f"q{index}" + sgl.user_end() + sgl.assistant(sgl.gen("x"))
        forks.join()

    state = run(chat, body)

    assert state["x"] == ["long q0", "long q1"]
    assert len(started) == len(echo.requests) == 2


def test_a_batch_keeps_rows_apart(chat, echo):
    """One row of four fails on the server."""
    echo.refusals["BOOM"] = BackendFailed("boom", status=None)
    program = sgl.function(lambda s, q: asking(q)(s))
    states = program.run_batch([{"q": q} for q in ("a", "BOOM", "c", "d")], backend=chat)

    assert [state["x"] for state in states if state.error() is None] == ["a", "c", "d"]
    assert isinstance(states[1].error(), BackendFailed)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    """And names the extra."""
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r'pip install "mmserve\[openai\]"'):
        sgl.OpenAI("m", api_key="k")


def test_settings_without_meaning_are_refused(monkeypatch):
    """Unknown extensions, a template for the chat API, no key."""
    with pytest.raises(BadRequest, match="allowed are"):
        sgl.OpenAI("m", api_key="k", extensions=["stop_regex"])
    with pytest.raises(UnsupportedByBackend, match="is_chat_model=False"):
        sgl.OpenAI("m", chat_template=TEMPLATE, api_key="k")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(BadRequest, match="api_key"):
        sgl.OpenAI("m", base_url="http://127.0.0.1:9")


def test_azure_has_its_own_client(script):
    """The deployment is in the path, the key in Azure's header."""
    script.rule = lambda path, body: [chunk("a", "stop"), "[DONE]"]
    settings = {"azure_endpoint": script.url, "api_version": "2024-10-21", "api_key": "k"}
    with sgl.OpenAI("m", is_azure=True, **settings) as backend:
        assert run(backend, asking())["x"] == "a"

    assert script.bodies[0][0].startswith("/openai/deployments/m/chat/completions?")
    assert {k.lower(): v for k, v in script.headers[0].items()}["api-key"] == "k"


def test_it_tells_who_answers(chat, url):
    """Nothing is asked for that; there is no cache to flush."""
    assert sgl.get_server_info(chat) == {"model": "echo", "base_url": f"{url}/"}
    assert sgl.flush_cache(chat) is True
