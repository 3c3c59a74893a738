"""The chat route on a real engine: parts, order, pictures in every role, limits, samples."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import jsonschema
import pytest
from support.oracle import differ, image_part, same

CANARY = "How are you?"


def text(words: str) -> dict:
    """A text part."""
    return {"type": "text", "text": words}


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_content_arrays_are_their_text(ask, role: str) -> None:
    """A string, one part and two parts of it are the same prompt, in every role."""

    def answer(content: object):
        return ask.messages(
            [{"role": role, "content": content}, {"role": "user", "content": "Go on."}]
        )

    whole = answer("alpha beta")
    same(whole, answer([text("alpha beta")]))
    same(whole, answer([text("alpha "), text("beta")]))
    differ(whole, answer([text("beta")]))


def test_text_and_pictures_keep_their_order(ask, pictures) -> None:
    """Swapped, moved to the front and moved to the back are four different prompts."""
    a, b = pictures
    orders = [("A", a, "B", b, "C"), ("A", b, "B", a, "C"), (a, b, "ABC"), ("ABC", a, b)]
    replies = [ask.chat(*order) for order in orders]
    assert len({reply.prompt_tokens for reply in replies}) == 1
    for left, right in itertools.combinations(replies, 2):
        differ(left, right)


@pytest.mark.parametrize("content", ["", [], None])
def test_empty_turns_are_served(ask, content: object) -> None:
    """Empty text, no parts and null are one empty turn, and the server goes on."""
    empty = ask.messages([{"role": "user", "content": content}])
    same(empty, ask.messages([{"role": "user", "content": ""}]))
    assert ask.chat(CANARY).status == 200


@pytest.mark.parametrize("body", [{}, {"messages": []}])
def test_empty_conversations_are_refused(ask, body: dict) -> None:
    """Nothing to answer is a clear 400, and the server goes on."""
    reply = ask.post("/v1/chat/completions", body)
    assert (reply.status, reply.error["param"]) == (400, "messages")
    assert ask.chat(CANARY).status == 200


BAD = [
    {"logit_bias": {"191222": -100}},
    {"logit_bias": {"-1": 5}},
    {"logit_bias": {"AI": -100}},
    {"logit_bias": {"3": "x"}},
    {"logit_bias": {"3": 1e9}},
    {"top_p": -1},
    {"temperature": -0.1},
    {"temperature": "NaN"},
    {"top_logprobs": 100000},
    {"n": 0},
    {"n": 9223372036854775807},
    {"max_tokens": -1},
]


def test_bad_fields_harm_nobody(ask) -> None:
    """Each is a 400 while two good requests run to the answers they give alone."""
    questions = ["Tell me a story.", "Count to ten."]

    def long_answer(question: str):
        return ask.chat(question, max_tokens=60, ignore_eos=True)

    alone = [long_answer(question) for question in questions]
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(long_answer, question) for question in questions]
        for fields in BAD:
            for stream in (False, True):
                reply = ask.chat("x", **fields, stream=stream)
                assert (reply.status, reply.error["param"]) == (400, next(iter(fields)))
        for before, after in zip(alone, running, strict=True):
            same(before, after.result())


def test_usage_counts_pictures(ask, pictures) -> None:
    """Each picture costs the same; a repeat is covered by the cache; streams count alike."""
    ask.flush()
    sizes = [ask.chat(*pictures[:count], "What?") for count in range(3)]
    first, second = (b.prompt_tokens - a.prompt_tokens for a, b in itertools.pairwise(sizes))
    assert first == second > 0
    assert [reply.image_tokens for reply in sizes] == [0, sizes[1].image_tokens, 2 * first]
    again = ask.chat(*pictures, "What?")
    assert 2 * first < again.cached_tokens <= again.prompt_tokens - 1
    for reply in (*sizes, again):
        usage = reply.usage
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    streamed = ask.chat(*pictures, "What?", stream=True, stream_options={"include_usage": True})
    last = json.loads(streamed.body["text"].split("data: ")[-2])
    assert last["usage"] == again.usage


def test_samples_obey_and_differ(ask, pictures) -> None:
    """Three seeded samples about a picture: each obeys the schema, not all are equal."""
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 999}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    asked = {"response_format": form, "temperature": 1, "seed": 5, "max_tokens": 60}
    one = ask.chat(pictures[0], "How many?", **asked)
    three = ask.chat(pictures[0], "How many?", n=3, **asked)
    texts = [choice["message"]["content"] for choice in three.body["choices"]]
    for words in texts:
        jsonschema.validate(json.loads(words), schema)
    assert [choice["index"] for choice in three.body["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert three.prompt_tokens == one.prompt_tokens


def test_greedy_samples_are_equal(ask, pictures) -> None:
    """At temperature 0 samples cannot differ."""
    reply = ask.chat(pictures[0], "What?", n=2, temperature=0)
    first, second = (choice["message"]["content"] for choice in reply.body["choices"])
    assert first == second


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_limits(ask, field: str) -> None:
    """One is one token, zero is none, and the server goes on."""
    asked = {"max_tokens": None, "ignore_eos": True, "logprobs": False, "top_logprobs": None}
    one = ask.chat("Hi", **{**asked, field: 1})
    assert one.usage["completion_tokens"] == 1
    assert one.body["choices"][0]["finish_reason"] == "length"
    none = ask.chat("Hi", **{**asked, field: 0})
    assert (none.usage["completion_tokens"], none.text) == (0, "")
    assert ask.chat(CANARY).status == 200


def test_no_limit_is_the_context(ask) -> None:
    """Null is absent, and an answer without a limit ends where the context does."""
    asked = {"max_tokens": None, "ignore_eos": True, "logprobs": False, "top_logprobs": None}
    long = ask.chat("Hi" * 200, **asked)
    assert long.usage["total_tokens"] == 512
    assert long.body["choices"][0]["finish_reason"] == "length"


def test_two_requests_with_one_id(ask, server_url: str) -> None:
    """Both get their own answers, and the gauge of running requests returns to zero."""

    def answer(words: str) -> str:
        body = {
            "messages": [{"role": "user", "content": words}],
            "temperature": 0,
            "max_tokens": 60,
            "ignore_eos": True,
        }
        headers = {"X-Request-Id": "dup"}
        response = httpx.post(f"{server_url}/v1/chat/completions", json=body, headers=headers)
        assert (response.status_code, response.json()["id"]) == (200, "dup")
        return response.json()["choices"][0]["message"]["content"]

    questions = ["Tell me a story.", "Count to ten.", "Why?"]
    alone = [answer(question) for question in questions]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(answer, questions)) == alone
    counters = ask.get("/server_info").json()["counters"]
    assert (counters["running"], counters["waiting"]) == (0, 0)


def test_system_turns_take_pictures(ask, pictures) -> None:
    """A picture in the system turn counts, and which one it is matters."""

    def answer(picture: bytes):
        system = [text("Look:"), image_part(picture)]
        return ask.messages(
            [{"role": "system", "content": system}, {"role": "user", "content": "What?"}]
        )

    a, b = map(answer, pictures)
    assert a.image_tokens == b.image_tokens > 0
    differ(a, b)


def test_tokenize_tells_where_pictures_stand(ask, pictures) -> None:
    """The rendered prompt holds as many placeholders as usage counts."""
    messages = [{"role": "user", "content": [text("A"), image_part(pictures[0]), text("B")]}]
    ids = ask.post("/tokenize", {"messages": messages}).body["tokens"]
    reply = ask.messages(messages)
    assert len(ids) == reply.prompt_tokens
    placeholder = max(set(ids), key=ids.count)
    assert ids.count(placeholder) == reply.image_tokens
