"""Programs on Anthropic's Messages API, by the official client and a server on loopback."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from PIL import Image
from support.anthropic_site import AnthropicSite, Reply, anthropic_site, said
from support.oracle import png

import mmserve.lang as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    BadRequest,
    CallTimeout,
    MediaRefused,
    MissingExtra,
    UnsupportedByBackend,
)

pytest.importorskip("anthropic")

P = png(Image.new("RGB", (8, 6), (200, 30, 30)))
Q = png(Image.new("RGB", (6, 8), (30, 30, 200)))
Make = Callable[..., sgl.Anthropic]


def data(picture: bytes) -> str:
    """A picture as the API takes it."""
    return base64.b64encode(picture).decode()


def digest(body: dict[str, Any]) -> str:
    """An answer that depends on the whole prompt."""
    prompt = [body.get("system"), body["messages"]]
    return hashlib.sha256(json.dumps(prompt).encode()).hexdigest()[:8]


@pytest.fixture
def site() -> Iterator[AnthropicSite]:
    """A server that answers with a digest of the prompt."""
    with anthropic_site(digest) as site:
        yield site


@pytest.fixture
def make(site: AnthropicSite) -> Iterator[Make]:
    """Makes backends that ask the server."""
    made = []

    def make(model: str = "claude-old", **settings: Any) -> sgl.Anthropic:
        given = {"api_key": "k", "base_url": site.url, "max_retries": 0, **settings}
        made.append(sgl.Anthropic(model, **given))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


def run(backend, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=backend, **values)


def asked(expr, answer=None):
    """A body of one question, and the name x for the answer."""

    def body(s):
        s += sgl.user(expr)
        s += sgl.assistant(sgl.gen("x", max_tokens=4) if answer is None else answer)

    return body


def test_a_call_is_what_the_api_wants(site, make):
    """System text apart, parts in order, values that differ from the API's own."""

    def body(s):
        s += sgl.system("Be brief.")
        s += sgl.user("A" + sgl.image(P) + "B" + sgl.image("http://h/q.png") + "?")
        s += sgl.assistant(
            sgl.gen("x", max_tokens=4, stop=["END"], temperature=0, top_k=5, top_p=0.5)
        )

    state = run(make(), body)

    assert state["x"] == digest(site.requests[0])[:4]
    (sent,) = site.requests
    assert said(sent["messages"][0]) == ["A", data(P), "B", "http://h/q.png", "?"]
    assert [message["role"] for message in sent.pop("messages")] == ["user"]
    assert sent == {
        "model": "claude-old",
        "system": "Be brief.",
        "max_tokens": 4,
        "stop_sequences": ["END"],
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "stream": True,
    }


def test_swapped_pictures_change_the_answer(site, make):
    """They are sent where they stand."""
    both = [
        run(make(), asked("A" + sgl.image(a) + "B" + sgl.image(b) + "?"))["x"]
        for a, b in ((P, Q), (Q, P))
    ]

    assert both[0] != both[1]


def test_every_call_carries_the_system_turns(site, make):
    """Two gens after one system turn, which stays in the state; several are joined."""

    def body(s):
        s += sgl.system("Be brief.")
        s += sgl.user("1?") + sgl.assistant(sgl.gen("x", max_tokens=4))
        s += sgl.system("Be exact.")
        s += sgl.user("2?") + sgl.assistant(sgl.gen("y", max_tokens=4))

    state = run(make(), body)
    state.sync()

    systems = [sent["system"] for sent in site.requests]
    assert systems == ["Be brief.", "Be brief.\n\nBe exact."]
    assert state.messages()[0] == {"role": "system", "content": "Be brief."}
    roles = [message["role"] for message in site.requests[1]["messages"]]
    assert roles == ["user", "assistant", "user"]


def test_turns_alternate_and_blank_ones_are_left_out(site, make):
    """Turns of one role are one message; white space alone is no block."""

    def body(s):
        s += sgl.user("1") + sgl.user(" ")
        s += sgl.user(sgl.image(P) + "\n" + sgl.image(Q))
        s += sgl.assistant(sgl.gen("x", max_tokens=4))

    run(make(), body).sync()

    (message,) = site.requests[0]["messages"]
    assert said(message) == ["1", data(P), data(Q)]


def test_an_answer_comes_with_its_numbers(site, make):
    """Prompt tokens are new, written and read ones; the read ones were cached."""
    backend = make()
    state = run(backend, asked("Hi?"))
    meta = state.get_meta_info("x")

    assert meta["finish_reason"] == {"type": "length", "length": 4}
    assert (meta["prompt_tokens"], meta["cached_tokens"]) == (11 + 5 + 7, 7)
    assert meta["completion_tokens"] == 4
    assert (backend.token_usage.prompt_tokens, backend.token_usage.completion_tokens) == (23, 4)


@pytest.mark.parametrize(
    ("pieces", "stop", "value", "matched"),
    [
        (["ab", "END", "cd"], "END", "ab", "END"),
        (["ab", "\ncd"], "\n", "ab", "\n"),
        (["ab", "\n", "\ncd"], ["\n\n"], "ab", "\n\n"),
        (["ab\n", "END"], ["END", "\n\n"], "ab\n", "END"),
        (["a ", "b"], ["\n", "END"], "a b", None),
    ],
)
def test_every_stop_ends_the_answer_before_it(site, make, pieces, stop, value, matched):
    """Those of white space only, which the API refuses, are watched for here."""
    site.rule = lambda body: Reply(tuple(pieces))
    state = run(make(), asked("Hi?", sgl.gen("x", max_tokens=40, stop=stop)))

    assert state["x"] == value
    reason = state.get_meta_info("x")["finish_reason"]
    assert (reason["type"], reason["matched"]) == ("stop", matched)


@pytest.mark.parametrize("reason", ["refusal", "tool_use"])
def test_an_answer_that_is_none_raises(site, make, reason):
    """A refusal is no answer that ends early."""
    site.rule = lambda body: Reply(("I ca",), stop_reason=reason)
    state = run(make(), asked("Hi?"))

    with pytest.raises(BackendFailed, match=reason):
        state["x"]


def test_a_later_gen_continues_its_turn_if_asked_to(site, make):
    """The turn so far is the last message; white space at its end is sent once, by none."""
    answers = iter([Reply((" Bob",)), Reply(("\n", "30"))])
    site.rule = lambda body: next(answers)

    def body(s):
        s += sgl.user("Who?")
        s += sgl.assistant(
            "Name: " + sgl.gen("a", max_tokens=9) + ".\nAge:\n" + sgl.gen("b", max_tokens=9)
        )

    state = run(make(partial_turns=True), body)

    assert (state["a"], state["b"]) == ("Bob", "30")
    assert [said(sent["messages"][-1]) for sent in site.requests] == [
        ["Name:"],
        ["Name: Bob.\nAge:"],
    ]
    assert state.text() == "Who?Name: Bob.\nAge:\n30"


def test_partial_turns_are_off_because_new_models_refuse_them(site, make):
    """Unasked they are refused at the append; asked for, by the model, as its own error."""
    answer = "Name: " + sgl.gen("x", max_tokens=4)
    with pytest.raises(UnsupportedByBackend) as caught:
        run(make(), asked("Who?", answer))
    assert caught.value.fields["parameter"] == "gen"

    state = run(make("claude-new", partial_turns=True), asked("Who?", answer))
    with pytest.raises(BadRequest, match="continues no turn"):
        state["x"]


def test_several_gens_in_a_turn_are_answered_by_speculation(site, make):
    """One call, whose answer holds the constant text."""
    site.rule = lambda body: Reply(("Bob\nJob: ", "cook"))

    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.user("Who?")
        s += sgl.assistant(sgl.gen("a", stop="\n") + "\nJob: " + sgl.gen("b"))

    state = program.run(backend=make())

    assert (state["a"], state["b"]) == ("Bob", "cook")
    assert len(site.requests) == 1


REFUSED = {
    "select": sgl.select("x", ["a", "b"]),
    "n": sgl.gen("x", n=2),
    "seed": sgl.gen("x", seed=1),
    "json_schema": sgl.gen("x", json_schema={"type": "object"}),
    "dtype": sgl.gen("x", dtype=int),
    "regex": sgl.gen("x", regex="a+"),
    "ebnf": sgl.gen("x", ebnf='root ::= "a"'),
    "stop_regex": sgl.gen("x", stop_regex="a+"),
    "min_tokens": sgl.gen("x", min_tokens=2),
    "min_p": sgl.gen("x", min_p=0.1),
    "frequency_penalty": sgl.gen("x", frequency_penalty=1.0),
    "presence_penalty": sgl.gen("x", presence_penalty=1.0),
    "repetition_penalty": sgl.gen("x", repetition_penalty=1.5),
    "ignore_eos": sgl.gen("x", ignore_eos=True),
    "stop_token_ids": sgl.gen("x", stop_token_ids=[1]),
    "return_logprob": sgl.gen("x", return_logprob=True),
    "top_logprobs_num": sgl.gen("x", top_logprobs_num=2),
    "logprob_start_len": sgl.gen("x", logprob_start_len=0),
    "temperature": sgl.gen("x", temperature=1.5),
    "max_tokens": sgl.gen("x", max_tokens=0),
    "video": sgl.video([P, Q]) + sgl.gen("x"),
    "max_pixels": sgl.image(P, max_pixels=1024) + sgl.gen("x"),
    "raw": sgl.raw("<s>") + sgl.gen("x"),
}


@pytest.mark.parametrize("parameter", sorted(REFUSED))
def test_what_the_api_lacks_is_refused_at_the_append(site, make, parameter):
    """By name, with the backend and a way out; nothing is sent."""

    def body(s):
        s += sgl.user("Hi?")
        with pytest.raises(UnsupportedByBackend) as caught:
            s += sgl.assistant(REFUSED[parameter])
        assert caught.value.fields["parameter"] == parameter
        assert caught.value.fields["backend"] == "Anthropic(claude-old)"
        assert caught.value.hint

    run(make(), body)

    assert site.requests == []


@pytest.mark.parametrize("values", [{"seed": 1}, {"n": 2}, {"temperature": 1.5}])
def test_values_of_a_run_are_refused_alike(site, make, values):
    """Before the body begins."""
    with pytest.raises(UnsupportedByBackend) as caught:
        run(make(), asked("Hi?"), **values)

    assert [caught.value.fields["parameter"]] == list(values)


def test_clips_are_pictures_if_wanted(site, make):
    """The sampled frames in order."""
    run(make(frames=True), asked(sgl.video([P, Q, P], 2) + "What?")).sync()

    assert said(site.requests[0]["messages"][0]) == [data(P), data(P), "What?"]


@pytest.mark.parametrize(
    ("expr", "kind"),
    [
        (sgl.image(b"no picture"), MediaRefused),
        (sgl.image("file-0123456789abcdef0123456789abcdef"), MediaRefused),
    ],
)
def test_pictures_that_the_api_cannot_have_are_refused(make, expr, kind):
    """Other formats, and names that only a server of ours knows."""
    state = run(make(), asked(expr))

    with pytest.raises(kind):
        state["x"]


def test_an_answer_needs_a_question(site, make):
    """Right after another turn of the assistant there is none."""

    def body(s):
        s += sgl.user("Hi?") + sgl.assistant("Yes.")
        s += sgl.assistant(sgl.gen("x", max_tokens=4))

    with pytest.raises(BadRequest, match="user turn"):
        run(make(), body)["x"]
    assert site.requests == []


def test_a_server_error_is_raised_when_read(site, make):
    """With its status, at every read."""
    state = run(make(), asked("BOOM"))

    for _ in range(2):
        with pytest.raises(BackendFailed) as caught:
            state["x"]
        assert caught.value.fields["status"] == 500
    with pytest.raises(BackendFailed):
        list(state.text_iter("x"))


@pytest.mark.parametrize("end", [{"fails_after": 1}, {"is_cut": True}])
def test_a_stream_that_breaks_off_raises(site, make, end):
    """What came before is not taken for the answer."""
    site.rule = lambda body: Reply(("ab", "cd"), **end)
    state = run(make(), asked("Hi?", sgl.gen("x", max_tokens=40)))

    with pytest.raises(BackendFailed):
        state["x"]


def test_passing_errors_are_tried_again(site, make):
    """As often as `max_retries` says."""
    site.rule, site.problem = lambda body: Reply(("ok",)), (529, "overloaded_error")
    state = run(make(max_retries=1), asked("Hi?"))

    assert state["x"] == "ok"
    assert len(site.requests) == 2


def test_a_wrong_key_says_so(site, make):
    """The key is not told."""
    site.problem = (401, "authentication_error")
    state = run(make(api_key="secret-word"), asked("Hi?"))

    with pytest.raises(BackendFailed, match="API key") as caught:
        state["x"]
    assert "secret-word" not in str(caught.value)


def test_text_streams_as_it_comes(site, make):
    """In the pieces of the server."""
    site.rule = lambda body: Reply(("a", "b", "c"))
    program = sgl.function(asked("Hi?", sgl.gen("x", max_tokens=40)))
    state = program.run(backend=make(), stream=True)

    pieces = list(state.text_iter("x"))
    assert "".join(pieces) == state["x"] == "abc"


def test_cancelling_ends_the_call_at_the_server(site, make):
    """The reader is told, and the connection is closed."""
    site.rule = lambda body: Reply(("a",), is_endless=True)
    program = sgl.function(asked("Hi?", sgl.gen("x", max_tokens=10**6)))
    state = program.run(backend=make(), stream=True)
    assert next(iter(state.text_iter("x"))).startswith("a")
    state.cancel()

    with pytest.raises(Aborted):
        state["x"]
    assert site.has_left.wait(20)


def test_a_timeout_ends_the_call_at_the_server(site, make):
    """`timeout_s` bounds each call."""
    site.rule = lambda body: Reply(("a",), is_endless=True)
    state = run(make(), asked("Hi?", sgl.gen("x", max_tokens=10**6, timeout_s=0.2)))

    with pytest.raises(CallTimeout):
        state["x"]
    assert site.has_left.wait(20)


def test_forks_send_nothing_of_their_own(site, make):
    """A prefix is no call; each child asks with all that came before, pictures too."""

    def body(s):
        s += sgl.system("Be brief.")
        s += sgl.user_begin()
        s += sgl.image(P)
        forks = s.fork(3)
        forks += lambda i: f"Question {i}?"
        for child in forks:
            child += sgl.user_end()
            child += sgl.assistant(sgl.gen("x", max_tokens=4))
        forks.join()

    state = run(make(), body)

    assert len(state["x"]) == len(site.requests) == 3
    assert {sent["system"] for sent in site.requests} == {"Be brief."}
    assert sorted(said(sent["messages"][0]) for sent in site.requests) == [
        [data(P), f"Question {i}?"] for i in range(3)
    ]


def test_rows_of_a_batch_are_their_own(site, make):
    """A failed row leaves the others alone."""

    @sgl.function
    def program(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("x", max_tokens=8))

    rows = [{"question": q} for q in ("1?", "BOOM", "3?")]
    states = program.run_batch(rows, backend=make())

    good = [states[0]["x"], states[2]["x"]]
    content = [{"role": "user", "content": [{"type": "text", "text": q}]} for q in ("1?", "3?")]
    assert good == [digest({"messages": [message]}) for message in content]
    with pytest.raises(BackendFailed):
        states[1]["x"]


def test_it_tells_about_itself(site, make):
    """Name, model and address; a key is not among them."""
    backend = make()

    assert backend.name == "Anthropic(claude-old)"
    info = sgl.get_server_info(backend)
    assert info["model"] == "claude-old"
    assert str(info["base_url"]).startswith(site.url)
    assert sgl.flush_cache(backend)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    """When the backend is made."""
    monkeypatch.setitem(sys.modules, "anthropic", None)

    with pytest.raises(MissingExtra, match=r"mmserve\[anthropic\]"):
        sgl.Anthropic("claude-old")
