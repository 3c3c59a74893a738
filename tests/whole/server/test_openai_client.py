"""The unmodified `openai` client."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest
from support.oracle import image_part

MESSAGES = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    """A client that tries once."""
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    """The model's name, as the server lists it."""
    return client.models.list().data[0].id


def test_chat_about_a_picture(client: openai.OpenAI, model: str, pictures) -> None:
    """Answer, usage with details, finish reason."""
    content = [{"type": "text", "text": "What is this?"}, image_part(pictures[0])]
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        max_tokens=8,
        temperature=0,
    )
    assert answer.choices[0].message.content is not None
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.to_dict()["prompt_tokens_details"]["image_tokens"] > 0


def test_streaming_with_usage(client: openai.OpenAI, model: str) -> None:
    """Chunks join to the whole answer; the last one has its usage."""
    asked = {"model": model, "messages": MESSAGES, "max_tokens": 20, "temperature": 0}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(
            **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[0].choices[0].delta.role == "assistant"


def test_the_stream_helper(client: openai.OpenAI, model: str) -> None:
    """The client's own accumulator understands our chunks."""
    asked = {"model": model, "messages": MESSAGES, "extra_body": {"regex": "yes, [a-c]{3}"}}
    with client.chat.completions.stream(**asked) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content.startswith("yes, ")


def test_completions(client: openai.OpenAI, model: str) -> None:
    """The older route, echo and scores included."""
    answer = client.completions.create(
        model=model, prompt="Once", max_tokens=3, echo=True, logprobs=2, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith("Once")
    assert len(choice.logprobs.tokens) == answer.usage.total_tokens


def test_logprobs(client: openai.OpenAI, model: str) -> None:
    """One entry a token; greedy picks the likeliest."""
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=4,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    for entry in answer.choices[0].logprobs.content:
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)


def test_json_schema(client: openai.OpenAI, model: str) -> None:
    """The answer is valid."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    answer = client.chat.completions.create(
        model=model,
        messages=MESSAGES,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}},
    )
    assert json.loads(answer.choices[0].message.content)["a"] in ("x", "y")


def test_refusals_are_the_clients_errors(client: openai.OpenAI, model: str) -> None:
    """The client raises its own types, with our param and code."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=-1)
    assert (caught.value.param, caught.value.code) == ("max_tokens", "bad_request")
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="other", messages=MESSAGES)
