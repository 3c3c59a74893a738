"""The Responses API on a real engine, through the unmodified `openai` client."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel
from support.checkpoints import tiny_llava
from support.echo_client import EchoClient
from support.oracle import data_uri

from mmserve.core import EngineConfig, RunnerFailed, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

STORY = "Tell me a story."
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome", "Kyōto"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
]
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_output_tokens": 12}


class Weather(BaseModel):
    """What an answer must be."""

    city: Literal["Oslo", "Rome"]
    is_cold: bool


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with room for conversations, a byte of which is a token."""
    config = EngineConfig(
        model=str(tiny_llava(context=2048)),
        served_name="tiny",
        num_slots=16384,
        threads=1,
        verify_steps=True,
    )
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        yield f"{server.url}/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    """A client that tries once."""
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as client:
        yield client


def chat_text(client: openai.OpenAI, messages: list[Any], **fields: Any) -> str | None:
    """What the chat route answers."""
    asked = {"model": "tiny", "temperature": 0, "max_tokens": 12, **fields}
    answer = client.chat.completions.create(messages=messages, **asked)
    return answer.choices[0].message.content


def pictured(picture: bytes, words: str = "What is this?") -> list[Any]:
    """An input about a picture."""
    image = {"type": "input_image", "image_url": data_uri(picture), "detail": "auto"}
    return [{"role": "user", "content": [image, {"type": "input_text", "text": words}]}]


def test_an_answer_is_that_of_chat(client: openai.OpenAI) -> None:
    """The same text for the same turns; usage adds up."""
    told = client.responses.create(**GREEDY, input=STORY, instructions="Be brief.")
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": STORY},
    ]

    assert told.output_text == chat_text(client, messages)
    assert told.status in ("completed", "incomplete")
    assert told.usage is not None
    assert told.usage.total_tokens == told.usage.input_tokens + told.usage.output_tokens
    assert told.usage.output_tokens_details.reasoning_tokens == 0


def test_a_stream_says_the_same(client: openai.OpenAI) -> None:
    """Deltas join to the text, numbers count up, the last event has the whole response."""
    whole = client.responses.create(**GREEDY, input=STORY)
    events = list(client.responses.create(**GREEDY, input=STORY, stream=True))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    last = events[-1]

    assert "".join(deltas) == whole.output_text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert last.type == f"response.{whole.status}"
    assert last.response.output_text == whole.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_the_clients_own_stream_understands_ours(client: openai.OpenAI) -> None:
    """Its accumulator gives the final response, of a text and of a call."""
    asked = {**GREEDY, "input": STORY, "extra_body": {"regex": "yes, [a-c]{3}"}}
    with client.responses.stream(**asked) as stream:
        text = stream.get_final_response()
    fields = {"tools": TOOLS, "tool_choice": "required", "max_output_tokens": 80}
    with client.responses.stream(**{**GREEDY, **fields}, input="Weather?") as stream:
        call = stream.get_final_response().output[0]

    assert text.output_text.startswith("yes, ")
    assert call.type == "function_call"
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    assert call.parsed_arguments == json.loads(call.arguments)


def test_a_format_is_parsed(client: openai.OpenAI) -> None:
    """`responses.parse` gives the object, whole and streamed."""
    asked = {**GREEDY, "max_output_tokens": 80, "input": "Weather?", "text_format": Weather}
    parsed = client.responses.parse(**asked).output_parsed
    with client.responses.stream(**asked) as stream:
        streamed = stream.get_final_response().output_parsed

    assert isinstance(parsed, Weather)
    assert streamed == parsed


def test_a_function_is_parsed(client: openai.OpenAI) -> None:
    """From the client's own description of it."""
    told = client.responses.parse(
        **{**GREEDY, "max_output_tokens": 80},
        input="Weather?",
        tools=[openai.pydantic_function_tool(Weather)],
        tool_choice="required",
    )
    (call,) = told.output
    assert isinstance(call.parsed_arguments, Weather)


def test_a_json_object_is_one(client: openai.OpenAI) -> None:
    """Ended early by a bias, as the model alone would go on."""
    ends = client.post("/tokenize", body={"prompt": '"}'}, cast_to=object)["tokens"]
    told = client.responses.create(
        **{**GREEDY, "max_output_tokens": 200},
        input="Weather?",
        text={"format": {"type": "json_object"}},
        extra_body={"logit_bias": {str(token_id): 100 for token_id in ends}},
    )
    assert isinstance(json.loads(told.output_text), dict)


def test_log_probabilities(client: openai.OpenAI) -> None:
    """One entry a token; greedy picks the likeliest."""
    told = client.responses.create(
        **{**GREEDY, "max_output_tokens": 4},
        input=STORY,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    entries = told.output[0].content[0].logprobs
    assert entries
    for entry in entries:
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)


def test_a_picture_is_seen(client: openai.OpenAI, pictures: tuple[bytes, bytes]) -> None:
    """As a data address or an uploaded file, with the answer of chat; another is another."""
    answers = []
    for picture in pictures:
        told = client.responses.create(**GREEDY, input=pictured(picture))
        file = client.files.create(file=("a.png", picture), purpose="vision")
        named = pictured(picture)
        named[0]["content"][0] = {
            "type": "input_image",
            "file_id": file.id,
            "detail": "auto",
        }
        content = [
            {"type": "image_url", "image_url": {"url": data_uri(picture)}},
            {"type": "text", "text": "What is this?"},
        ]
        answers.append(told.output_text)

        assert client.responses.create(**GREEDY, input=named).output_text == answers[-1]
        assert chat_text(client, [{"role": "user", "content": content}]) == answers[-1]
        assert told.usage.to_dict()["input_tokens_details"]["image_tokens"] > 0
    assert answers[0] != answers[1]


def test_a_clip_is_seen(client: openai.OpenAI, pictures: tuple[bytes, bytes]) -> None:
    """Its frames are tokens of video, and are told of."""
    frames = [base64.b64encode(picture).decode() for picture in pictures]
    clip: Any = {"type": "video_url", "video_url": {"frames": frames}}
    told = client.responses.create(**GREEDY, input=[{"role": "user", "content": [clip]}])

    assert told.usage.to_dict()["input_tokens_details"]["video_tokens"] > 0
    assert len(told.to_dict()["mmserve"]["clips"][0]["timestamps_s"]) == 2


def test_a_conversation_goes_on(client: openai.OpenAI, pictures: tuple[bytes, bytes]) -> None:
    """As if all of it had been sent, picture included; what was computed is not again."""
    first = client.responses.create(**GREEDY, input=pictured(pictures[0]))
    second = client.responses.create(**GREEDY, input="And why?", previous_response_id=first.id)
    by_hand = client.responses.create(
        **GREEDY,
        store=False,
        input=[
            *pictured(pictures[0]),
            *first.output,
            {"role": "user", "content": "And why?"},
        ],
    )

    assert second.output_text == by_hand.output_text
    assert second.usage.input_tokens == by_hand.usage.input_tokens
    details = second.usage.to_dict()["input_tokens_details"]
    assert details["image_tokens"] > 0
    assert details["cached_tokens"] >= first.usage.input_tokens - 1
    listed = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.id for item in listed][1:2] == [first.output[0].id]


def test_a_tool_is_called_and_answered(client: openai.OpenAI) -> None:
    """Call, result, and the next answer, kept here or sent by hand."""
    fields = {**GREEDY, "tools": TOOLS, "max_output_tokens": 80}
    first = client.responses.create(**fields, tool_choice="required", input="Weather?")
    (call,) = first.output
    jsonschema.validate(json.loads(call.arguments), WEATHER)
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "rain",
    }
    asked = {**fields, "tool_choice": "none", "max_output_tokens": 8}
    kept = client.responses.create(**asked, input=[result], previous_response_id=first.id)
    sent = client.responses.create(
        **asked, input=[{"role": "user", "content": "Weather?"}, call, result]
    )

    assert kept.output_text == sent.output_text
    assert kept.usage.input_tokens == sent.usage.input_tokens


def test_what_is_kept_is_told_and_deleted(client: openai.OpenAI) -> None:
    """The client's other calls."""
    told = client.responses.create(**GREEDY, input=STORY, metadata={"a": "b"})

    assert client.responses.retrieve(told.id).to_dict() == told.to_dict()
    (item,) = client.responses.input_items.list(told.id).data
    assert item.content[0].text == STORY
    client.responses.delete(told.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(told.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(**GREEDY, input="x", previous_response_id=told.id)
    assert caught.value.param == "previous_response_id"


def test_refusals_are_the_clients_errors(client: openai.OpenAI) -> None:
    """The client raises its own types, with our param and code, streaming or not."""
    for is_stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**GREEDY, input=STORY, truncation="auto", stream=is_stream)
        assert (caught.value.param, caught.value.code) == ("truncation", "bad_request")
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**GREEDY, input=pictured(b"plain words"), stream=is_stream)
        assert caught.value.code == "media_refused"
        with pytest.raises(openai.BadRequestError, match="tokens"):
            client.responses.create(**GREEDY, input="x" * 4000, stream=is_stream)


def test_a_failure_in_a_stream_is_raised_by_the_client() -> None:
    """After the text there was; the client's own error, with our words."""
    failure = RunnerFailed("secret words", step=3)
    echo = EchoClient(failures={"hello": (2, failure)})
    deltas = []
    with (
        RunningServer(echo, ServerConfig(port=0)) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client,
        pytest.raises(openai.APIError, match="the server failed") as caught,
    ):
        for event in client.responses.create(model="echo", input="hello", stream=True):
            deltas += [event.delta] if event.type == "response.output_text.delta" else []
    assert deltas == ["h", "e"]
    assert caught.value.code == failure.code


def test_many_at_once_through_the_async_client(url: str) -> None:
    """Whole and streamed answers beside each other are those of one at a time."""
    inputs = [f"Tell me story {k}." for k in range(4)]

    async def streamed(client: openai.AsyncOpenAI, words: str) -> str:
        async with client.responses.stream(
            **GREEDY, input=words, extra_body={"regex": "[a-z ]{6}"}
        ) as stream:
            deltas = [
                event.delta
                async for event in stream
                if event.type == "response.output_text.delta"
            ]
            final = await stream.get_final_response()
        assert "".join(deltas) == final.output_text
        return final.output_text

    async def whole(client: openai.AsyncOpenAI, words: str) -> str:
        asked = {**GREEDY, "input": words, "extra_body": {"regex": "[a-z ]{6}"}}
        return (await client.responses.create(**asked)).output_text

    async def everything() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            together = await asyncio.gather(*(streamed(client, words) for words in inputs))
            alone = [await whole(client, words) for words in inputs]
        return together, alone

    together, alone = asyncio.run(everything())
    assert together == alone
    assert all(len(words) == 6 for words in alone)
