"""Programs through the real `litellm`: on our own server, and on one with Anthropic's API."""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import openai
import pytest
from PIL import Image
from support.anthropic_site import Reply, anthropic_site, said
from support.echo_client import EchoClient
from support.oracle import png

import mmserve.lang as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    BytesSource,
    ImagePart,
    MissingExtra,
    RunnerFailed,
    ServerConfig,
    TextPart,
    Turn,
    UnsupportedByBackend,
    UrlSource,
)
from mmserve.lang.conversation import source_url
from mmserve.server import RunningServer

pytestmark = [
    pytest.mark.skipif(find_spec("litellm") is None, reason="litellm is not installed"),
    # Of the package's own: it uses what pydantic deprecates, and leaves sockets and an event
    # loop to the garbage collector.
    pytest.mark.filterwarnings("ignore:Item:UserWarning:pydantic"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

P = png(Image.new("RGB", (8, 6), (200, 30, 30)))
Q = png(Image.new("RGB", (6, 8), (30, 30, 200)))
Make = Callable[..., sgl.LiteLLM]


@pytest.fixture(scope="module", autouse=True)
def package() -> Iterator[None]:
    """Uses the list of models that it comes with; its connections are closed in the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm  # noqa: PLC0415  it fetches that list when it is imported

        yield
        cached = litellm.in_memory_llm_clients_cache.cache_dict
        for client in cached.values():
            if isinstance(client, openai.OpenAI):
                client.close()
        cached.clear()
        gc.collect()


@pytest.fixture
def client() -> EchoClient:
    """An engine that answers with the last text."""
    return EchoClient()


@pytest.fixture
def make(client: EchoClient) -> Iterator[Make]:
    """Makes backends that ask our own server around it."""
    with RunningServer(client, ServerConfig(port=0)) as server:

        def make(model: str = "openai/echo", **settings: Any) -> sgl.LiteLLM:
            given = {"api_key": "k", "api_base": f"{server.url}/v1", "max_retries": 0}
            return sgl.LiteLLM(model, **{**given, **settings})

        yield make


def sent(picture: bytes) -> ImagePart:
    """A picture as it comes to the engine."""
    return ImagePart(UrlSource(source_url(BytesSource(picture))))


def run(backend, body, **values):
    """Run a body without parameters."""
    return sgl.function(body).run(backend=backend, **values)


def asked(expr, answer=None):
    """A body of one question, and the name x for the answer."""

    def body(s):
        s += sgl.user(expr)
        s += sgl.assistant(sgl.gen("x", max_tokens=99) if answer is None else answer)

    return body


def test_a_call_reaches_the_engine_as_it_was_written(client, make):
    """Turns, parts in order, sampling values."""

    def body(s):
        s += sgl.system("Be brief.")
        s += sgl.user("A" + sgl.image(P) + "B" + sgl.image(Q) + "?")
        s += sgl.assistant(
            sgl.gen(
                "x",
                max_tokens=9,
                stop=["E"],
                temperature=0.5,
                top_p=0.5,
                seed=7,
                frequency_penalty=0.5,
                presence_penalty=-0.5,
            )
        )

    assert run(make(), body)["x"] == "AB?"
    (request,) = client.requests
    assert request.parts == (
        Turn("system", (TextPart("Be brief."),)),
        Turn(
            "user",
            (
                TextPart("A"),
                sent(P),
                TextPart("B"),
                sent(Q),
                TextPart("?"),
            ),
        ),
        Turn("assistant", (), is_open=True),
    )
    sampling = request.sampling
    assert (sampling.max_new_tokens, sampling.stop, sampling.seed) == (9, ("E",), 7)
    assert (sampling.temperature, sampling.top_p) == (0.5, 0.5)
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -0.5)


def test_an_answer_comes_with_its_numbers(client, make):
    """As the server counts them; the backend adds them up."""
    backend = make()
    state = run(backend, asked("Hello"))
    meta = state.get_meta_info("x")

    assert state["x"] == "Hello"
    assert meta["finish_reason"]["type"] == "stop"
    assert meta["completion_tokens"] == backend.token_usage.completion_tokens == 5
    assert meta["prompt_tokens"] == backend.token_usage.prompt_tokens > 5
    assert meta["cached_tokens"] == 1


def test_a_cut_answer_says_length(make):
    """`max_tokens` ends it."""
    state = run(make(), asked("Hello", sgl.gen("x", max_tokens=2)))

    assert state["x"] == "He"
    assert state.get_meta_info("x")["finish_reason"]["type"] == "length"


def test_several_answers_to_one_prompt(client, make):
    """`n` gives lists; the text goes on with the first."""
    backend = make()
    state = run(backend, asked("Hello", sgl.gen("x", n=2, max_tokens=9)))

    assert state["x"] == ["Hello", "Hello"]
    assert state.text() == "HelloHello"
    assert len(state.get_meta_info("x")) == 2
    assert client.requests[0].sampling.n == 2
    assert backend.token_usage.completion_tokens == 10


def test_a_schema_is_sent_as_a_response_format(client, make):
    """Where the package says that the provider takes one."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    state = run(make(), asked('{"a": 1}', sgl.gen("x", json_schema=schema, max_tokens=20)))

    assert state.value("x") == {"a": 1}
    constraint = client.requests[0].sampling.constraint
    assert constraint.kind == "json_schema"
    assert json.loads(constraint.value)["properties"] == schema["properties"]


REFUSED = {
    "select": sgl.select("x", ["a", "b"]),
    "dtype": sgl.gen("x", dtype=int),
    "regex": sgl.gen("x", regex="a+"),
    "ebnf": sgl.gen("x", ebnf='root ::= "a"'),
    "stop_regex": sgl.gen("x", stop_regex="a+"),
    "min_tokens": sgl.gen("x", min_tokens=2),
    "min_p": sgl.gen("x", min_p=0.1),
    "top_k": sgl.gen("x", top_k=3),
    "repetition_penalty": sgl.gen("x", repetition_penalty=1.5),
    "ignore_eos": sgl.gen("x", ignore_eos=True),
    "return_logprob": sgl.gen("x", return_logprob=True),
    "top_logprobs_num": sgl.gen("x", top_logprobs_num=2),
    "logprob_start_len": sgl.gen("x", logprob_start_len=0),
    "max_tokens": sgl.gen("x", max_tokens=0),
    "video": sgl.video([P, Q]) + sgl.gen("x"),
    "max_pixels": sgl.image(P, max_pixels=1024) + sgl.gen("x"),
    "gen": "Name: " + sgl.gen("x"),
}
GRANTED = {
    "n": sgl.gen("x", n=2),
    "seed": sgl.gen("x", seed=1),
    "frequency_penalty": sgl.gen("x", frequency_penalty=1.0),
    "presence_penalty": sgl.gen("x", presence_penalty=1.0),
}


def refuses(backend, parameter, answer):
    """A body that demands the refusal of its answer at the append."""

    def body(s):
        s += sgl.user("Hi?")
        with pytest.raises(UnsupportedByBackend) as caught:
            s += sgl.assistant(answer)
        assert caught.value.fields["parameter"] == parameter
        assert caught.value.fields["backend"] == backend.name
        assert caught.value.hint

    run(backend, body)


@pytest.mark.parametrize("parameter", sorted(REFUSED))
def test_what_a_chat_api_lacks_is_refused_at_the_append(client, make, parameter):
    """By name, with the backend and a way out; nothing is sent."""
    refuses(make(), parameter, REFUSED[parameter])

    assert client.requests == []


@pytest.mark.parametrize("parameter", sorted(GRANTED))
def test_what_the_provider_lacks_is_refused_at_the_append(make, parameter):
    """The package says that Anthropic takes no such thing, and OpenAI does."""
    assert make().abilities.takes(parameter)

    refuses(make("anthropic/claude-sonnet-4-5"), parameter, GRANTED[parameter])


def test_clips_are_pictures_if_wanted(client, make):
    """The sampled frames in order."""
    run(make(frames=True), asked(sgl.video([P, Q, P], 2) + "What?")).sync()

    (turn, _) = client.requests[0].parts
    assert turn.parts == (sent(P), sent(P), TextPart("What?"))


def test_a_later_gen_continues_its_turn_if_asked_to():
    """The turn so far is the last message, without white space at its end."""
    with anthropic_site(lambda body: Reply((" ", "Bob"))) as site:
        backend = sgl.LiteLLM(
            "anthropic/claude-x", partial_turns=True, api_key="k", api_base=site.url
        )
        state = run(backend, asked("Who?", "Name: " + sgl.gen("x", max_tokens=9)))

        assert state.text() == "Who?Name: Bob"
        assert "temperature" not in site.requests[0]
        last = site.requests[0]["messages"][-1]
        assert (last["role"], said(last)) == ("assistant", ["Name:"])


def test_several_gens_in_a_turn_are_answered_by_speculation(client, make):
    """One call, whose answer holds the constant text."""

    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.user("Bob\nJob: cook")
        s += sgl.assistant(sgl.gen("a", stop="\n") + "\nJob: " + sgl.gen("b"))

    state = program.run(backend=make())

    assert (state["a"], state["b"]) == ("Bob", "cook")
    assert len(client.requests) == 1


def test_a_server_error_is_raised_when_read(client, make):
    """With its status, at every read."""
    client.refusals["BOOM"] = RunnerFailed("it broke", step=1)
    state = run(make(), asked("BOOM"))

    for _ in range(2):
        with pytest.raises(BackendFailed) as caught:
            state["x"]
        assert caught.value.fields["status"] == 500
    with pytest.raises(BackendFailed):
        list(state.text_iter("x"))


@pytest.mark.parametrize("end", [{"fails_after": 1}, {"is_cut": True}])
def test_a_stream_that_breaks_off_raises(end):
    """What came before is not taken for the answer."""
    with anthropic_site(lambda body: Reply(("ab", "cd"), **end)) as site:
        backend = sgl.LiteLLM(
            "anthropic/claude-x", api_key="k", api_base=site.url, max_retries=0
        )
        state = run(backend, asked("Hi?"))

        with pytest.raises(BackendFailed):
            state["x"]


def test_text_streams_as_it_comes(client, make):
    """Piece by piece, before the answer has ended."""
    client.pace_s = 0.01
    state = sgl.function(asked("Hello")).run(backend=make(), stream=True)

    pieces = list(state.text_iter("x"))
    assert "".join(pieces) == state["x"] == "Hello"
    assert len(pieces) > 1


def test_cancelling_ends_the_call_at_the_server(client, make):
    """The reader is told at once, the connection is closed."""
    client.pace_s = 0.01
    answer = sgl.gen("x", max_tokens=3000)
    state = sgl.function(asked("Hello " * 500, answer)).run(backend=make(), stream=True)
    assert next(iter(state.text_iter("x")))
    state.cancel()

    with pytest.raises(Aborted):
        state["x"]
    (ticket,) = client.tickets
    deadline = time.monotonic() + 20
    while ticket.is_running and time.monotonic() < deadline:
        time.sleep(0.002)
    assert ticket.is_cancelled


def test_forks_send_nothing_of_their_own(client, make):
    """A prefix is no call; each child asks with all that came before, pictures too."""

    def body(s):
        s += sgl.user_begin()
        s += sgl.image(P)
        forks = s.fork(3)
        forks += lambda i: f"Question {i}?"
        for child in forks:
            child += sgl.user_end()
            child += sgl.assistant(sgl.gen("x", max_tokens=20))
        forks.join()

    state = run(make(), body)

    assert state["x"] == [f"Question {i}?" for i in range(3)]
    assert len(client.requests) == 3
    for request in client.requests:
        assert request.parts[0].parts[0] == sent(P)


def test_rows_of_a_batch_are_their_own(client, make):
    """A failed row leaves the others alone."""
    client.refusals["BOOM"] = RunnerFailed("it broke", step=1)

    @sgl.function
    def program(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("x", max_tokens=8))

    rows = [{"question": q} for q in ("1?", "BOOM", "3?")]
    states = program.run_batch(rows, backend=make())

    assert [states[0]["x"], states[2]["x"]] == ["1?", "3?"]
    with pytest.raises(BackendFailed):
        states[1]["x"]


def test_it_tells_about_itself(make):
    """Name, model and address; a key is not among them."""
    backend = make()

    assert backend.name == "LiteLLM(openai/echo)"
    info = sgl.get_server_info(backend)
    assert info["model"] == "openai/echo"
    assert "k" not in info.values()
    assert sgl.flush_cache(backend)


def test_without_the_package_it_says_what_to_install(monkeypatch):
    """When the backend is made."""
    monkeypatch.setitem(sys.modules, "litellm", None)

    with pytest.raises(MissingExtra, match=r"mmserve\[litellm\]"):
        sgl.LiteLLM("openai/echo")
