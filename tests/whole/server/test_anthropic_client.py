"""The unmodified `anthropic` client."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import jsonschema
import pytest
from support.checkpoints import tiny_llava
from support.departures import wait_until
from support.live import Ghost, live

import mmserve as sgl

PROMPT = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0}
"""Newer clients have no argument for it."""
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": PROMPT,
    "max_tokens": 20,
    "extra_body": GREEDY,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Oslo", "Rome"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA},
    {"name": "time", "input_schema": {"type": "object", "additionalProperties": False}},
]


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[anthropic.Anthropic]:
    """A client that tries once."""
    with anthropic.Anthropic(base_url=server_url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def roomy() -> Iterator[anthropic.Anthropic]:
    """A client of a server with room for definitions of tools, spelled byte by byte."""
    with (
        live(tiny_llava(context=4096)) as site,
        anthropic.Anthropic(base_url=site.url, api_key="any", max_retries=0) as client,
    ):
        yield client


def image(content: bytes) -> dict[str, Any]:
    """A picture as a block."""
    words = base64.b64encode(content).decode()
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": words},
    }


def about(*blocks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A question about blocks."""
    content = [*blocks, {"type": "text", "text": "What is this?"}]
    return {**ASKED, "messages": [{"role": "user", "content": content}], **fields}


def total(usage: anthropic.types.Usage) -> int:
    """All tokens of a prompt."""
    counts = (usage.input_tokens, usage.cache_read_input_tokens)
    return sum(map(int, (*counts, usage.cache_creation_input_tokens)))  # type: ignore[arg-type]


def test_an_answer_is_that_of_chat(client: anthropic.Anthropic, ask: Any) -> None:
    """The same prompt, the same greedy text, the same counts."""
    answer = client.messages.create(**ASKED, system="Be brief.")
    chat = ask.messages([{"role": "system", "content": "Be brief."}, *PROMPT], max_tokens=20)
    assert "".join(block.text for block in answer.content) == chat.text
    assert total(answer.usage) == chat.prompt_tokens
    assert answer.usage.output_tokens == chat.usage["completion_tokens"]
    assert (answer.role, answer.type, answer.model) == ("assistant", "message", "tiny")
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_usage_tells_what_was_cached(
    client: anthropic.Anthropic, ask: Any, pictures: tuple[bytes, bytes]
) -> None:
    """A prompt sent again is read from the cache, but for its last token."""
    ask.flush()
    asked = about(image(pictures[0]))
    cold, warm = (client.messages.create(**asked).usage for _ in range(2))
    assert cold.cache_read_input_tokens == 0
    assert warm.input_tokens == 1
    assert total(cold) == total(warm)
    assert cold.to_dict()["input_tokens_details"]["image_tokens"] > 0


def test_streams_join_to_the_whole(client: anthropic.Anthropic) -> None:
    """By the client's own helper, and as raw events."""
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_the_asynchronous_client(server_url: str, client: anthropic.Anthropic) -> None:
    """Whole and streamed answers at once are those of the other client."""

    async def both() -> tuple[str, str]:
        async with anthropic.AsyncAnthropic(
            base_url=server_url, auth_token="any", max_retries=0
        ) as other:

            async def streamed() -> str:
                async with other.messages.stream(**ASKED) as stream:
                    return await stream.get_final_text()

            answer, text = await asyncio.gather(other.messages.create(**ASKED), streamed())
            return answer.content[0].text, text

    whole = client.messages.create(**ASKED).content[0].text
    assert asyncio.run(both()) == (whole, whole)


def test_stop_sequences(client: anthropic.Anthropic) -> None:
    """The text ends before the sequence, which is told."""
    text = client.messages.create(**ASKED).content[0].text
    stop = text[5:7]
    answer = client.messages.create(**ASKED, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in answer.content) == text[: text.index(stop)]


def test_an_answer_goes_on_where_it_was_begun(client: anthropic.Anthropic) -> None:
    """The beginning is given as the assistant's, the rest is what was said before."""
    text = client.messages.create(
        **ASKED | {"extra_body": {**GREEDY, "regex": "[a-z]{4} [a-z]{4}"}}
    )
    begun, rest = text.content[0].text[:5], text.content[0].text[5:]
    messages = [*PROMPT, {"role": "assistant", "content": begun}]
    answer = client.messages.create(
        **ASKED | {"messages": messages, "extra_body": {**GREEDY, "regex": "[a-z]{4}"}}
    )
    assert answer.content[0].text == rest


def test_pictures_of_all_sources_are_the_same(
    client: anthropic.Anthropic, pictures: tuple[bytes, bytes], media_host: Any, server_url: str
) -> None:
    """Base64, an address, and a file answer alike; another picture does not."""
    url = media_host.put("/a.png", pictures[0])
    files = {"file": ("a.png", pictures[0])}
    sent = httpx.post(
        f"{server_url}/v1/files",
        files=files,
        data={"purpose": "vision"},
        headers={"x-api-key": "any"},
    ).json()
    blocks = [
        image(pictures[0]),
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "image", "source": {"type": "file", "file_id": sent["id"]}},
        image(pictures[1]),
    ]
    first, *same, other = (client.messages.create(**about(b)).content for b in blocks)
    assert [one[0].text for one in same] == [first[0].text] * 2
    assert other[0].text != first[0].text


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_forced_calls_are_valid(roomy: anthropic.Anthropic, choice: Any) -> None:
    """Whole and streamed, at any temperature, the input is of the tool's schema."""
    schemas = {tool["name"]: tool["input_schema"] for tool in TOOLS}
    asked = {**ASKED, "tools": TOOLS, "tool_choice": choice, "max_tokens": 90}
    for seed in range(4):
        body = {**asked, "extra_body": {"seed": seed}}
        answer = roomy.messages.create(**body)
        (call,) = answer.content
        jsonschema.validate(call.input, schemas[call.name])
        assert answer.stop_reason == "tool_use"
        with roomy.messages.stream(**body) as stream:
            (same,) = stream.get_final_message().content
        assert (same.name, same.input) == (call.name, call.input)


def test_results_come_back(roomy: anthropic.Anthropic, pictures: tuple[bytes, bytes]) -> None:
    """A call is sent back as the client holds it, with a result of text and a picture."""
    asked = {**ASKED, "tools": TOOLS, "max_tokens": 90}
    call = roomy.messages.create(**asked, tool_choice={"type": "tool", "name": "weather"})

    def after(picture: bytes) -> anthropic.types.Message:
        content = [{"type": "text", "text": "Rain."}, image(picture)]
        result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": content}
        messages = [
            *PROMPT,
            {"role": "assistant", "content": call.content},
            {"role": "user", "content": [result]},
        ]
        return roomy.messages.create(**{**asked, "messages": messages, "max_tokens": 8})

    one, other = map(after, pictures)
    assert one.usage.to_dict()["input_tokens_details"]["image_tokens"] > 0
    assert one.content[0].text != other.content[0].text


def test_output_of_a_schema(client: anthropic.Anthropic) -> None:
    """`output_config` holds the text to a form."""
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    answer = client.messages.create(**{**ASKED, "max_tokens": 90}, output_config=form)
    jsonschema.validate(httpx.Response(200, text=answer.content[0].text).json(), SCHEMA)


def test_tokens_are_counted(client: anthropic.Anthropic, pictures: tuple[bytes, bytes]) -> None:
    """As many as the answer's usage says, with system, tools and pictures."""
    asked = about(image(pictures[0]), system="Be brief.", tools=TOOLS[1:])
    counted = {name: asked[name] for name in ("model", "messages", "system", "tools")}
    count = client.messages.count_tokens(**counted).input_tokens
    assert count == total(client.messages.create(**asked).usage)
    text = client.messages.count_tokens(model="tiny", messages=PROMPT).input_tokens
    assert text < count


def test_refusals_are_the_clients_errors(client: anthropic.Anthropic) -> None:
    """The client raises its own types, with our words; streaming or not."""
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match="max_tokens is -1"):
            client.messages.create(**{**ASKED, "max_tokens": -1}, stream=stream)
        with pytest.raises(anthropic.NotFoundError):
            client.messages.create(**{**ASKED, "model": "claude"}, stream=stream)
        with pytest.raises(anthropic.BadRequestError, match="the limit is"):
            long = [{"role": "user", "content": "word " * 2000}]
            client.messages.create(**{**ASKED, "messages": long}, stream=stream)
    bad = image(b"no picture")
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**about(bad))
    assert caught.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_bad_schemas_name_the_tool(roomy: anthropic.Anthropic) -> None:
    """A schema that cannot be enforced is refused before anything is said."""
    schema = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    tools = [*TOOLS, {"name": "bad", "input_schema": schema}]
    with pytest.raises(anthropic.BadRequestError, match="tool bad"):
        roomy.messages.create(**ASKED, tools=tools, tool_choice={"type": "any"})


def test_who_leaves_a_stream_ends_it(server_url: str) -> None:
    """An endless answer stops when its reader is gone."""
    body = {
        "messages": PROMPT,
        "max_tokens": 400,
        "stream": True,
        "ignore_eos": True,
    }
    key = 'finished_total{reason="abort"}'

    def aborted() -> float:
        return httpx.get(f"{server_url}/server_info").json()["counters"].get(key, 0.0)

    before = aborted()
    with Ghost(server_url, "/v1/messages", body) as ghost:
        assert ghost.read()
    wait_until(lambda: aborted() > before)
    assert aborted() == before + 1


def test_programs_of_the_language(server_url: str, client: anthropic.Anthropic) -> None:
    """The language's backend for Anthropic takes this server for it."""

    @sgl.function
    def tell(s: Any) -> None:
        s += sgl.user(PROMPT[0]["content"])
        s += sgl.assistant(sgl.gen("story", max_tokens=20, temperature=0))

    backend = sgl.Anthropic("tiny", base_url=server_url, api_key="any")
    try:
        story = tell.run(backend=backend)["story"]
    finally:
        backend.close()
    assert story == client.messages.create(**ASKED).content[0].text
