"""`/v1/responses` on an echo: what is read, what is refused, and what is answered."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from mmserve.core import (
    BytesSource,
    Constraint,
    ConstraintRefused,
    ImagePart,
    TextPart,
    ToolCall,
    Turn,
    UrlSource,
    VideoPart,
)

PICTURE = b"\x89PNG of no use"
URL = "http://h/b.png"
OPEN = Turn("assistant", (), is_open=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
LOGPROBS = ["message.output_text.logprobs"]


def ask(site: Any, given: object = "hello", **fields: Any) -> Any:
    """The response to an input."""
    response = site.post("/v1/responses", input=given, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def refused(site: Any, status: int = 400, **fields: Any) -> Any:
    """The refusal of a request."""
    return site.refused(site.post("/v1/responses", **{"input": "hello", **fields}), status)


def asked(site: Any) -> Any:
    """The request that the engine got last."""
    return site.client.requests[-1]


def turns(site: Any, given: object, **fields: Any) -> tuple[Turn, ...]:
    """The turns that an input becomes, without the one to be answered."""
    ask(site, given, **fields)
    *said, last = asked(site).parts
    assert last == OPEN
    return tuple(said)


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """An input of one message of the user."""
    return [{"role": "user", "content": list(parts)}]


def test_a_text_is_answered_with_the_whole_object(site) -> None:
    """Every field that clients of this API read is there, with what this server did."""
    told = ask(site, "hé")
    item = told["output"][0]

    assert told.pop("id").startswith("resp_")
    assert told.pop("created_at") <= told.pop("completed_at")
    assert item.pop("id").startswith("msg_")
    assert told == {
        "object": "response",
        "status": "completed",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "matched_stop": 257,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "model": "echo",
        "output": [
            {
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [
                    {"type": "output_text", "text": "hé", "annotations": [], "logprobs": []}
                ],
            }
        ],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": None,
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": {
            "input_tokens": 21,
            "input_tokens_details": {"cached_tokens": 1, "image_tokens": 0, "video_tokens": 0},
            "output_tokens": 3,
            "output_tokens_details": {"reasoning_tokens": 0, "forced_tokens": 0},
            "total_tokens": 24,
        },
        "user": None,
    }


def test_what_was_asked_is_repeated(site) -> None:
    """As the client sent it, so that it can read its own request off the response."""
    shape = {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}
    fields: dict[str, Any] = {
        "instructions": "be brief",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "top_p": 0.25,
        "user": "ann",
        "safety_identifier": "x1",
        "prompt_cache_key": "k",
        "store": False,
    }
    told = ask(site, **fields, text={"format": shape})

    assert {name: told[name] for name in fields} == fields
    assert told["text"]["format"] == shape


def test_an_answer_that_was_cut_is_incomplete(site) -> None:
    """The reason is the limit, and the item says so too."""
    told = ask(site, max_output_tokens=2)

    assert told["status"] == told["output"][0]["status"] == "incomplete"
    assert told["incomplete_details"] == {"reason": "max_output_tokens"}
    assert told["output"][0]["content"][0]["text"] == "he"
    assert told["completed_at"] is None


def test_an_answer_may_be_as_long_as_there_is_room(site) -> None:
    """Without a limit there is none, as in chat."""
    told = ask(site, "x" * 500)
    assert told["status"] == "completed"
    assert told["usage"]["output_tokens"] == 500


def test_no_text_is_an_empty_message(site) -> None:
    """There is a message whatever it says."""
    told = ask(site, "")
    assert [part["text"] for part in told["output"][0]["content"]] == [""]


def test_the_engine_gets_what_was_asked(site) -> None:
    """Sampling, extras, client, salt and priority as the chat route hands them over."""
    ask(
        site,
        max_output_tokens=7,
        temperature=0,
        top_k=3,
        seed=5,
        stop=["x"],
        user="ann",
        cache_salt="s",
        priority=2,
    )
    sampling = asked(site).sampling

    assert (sampling.max_new_tokens, sampling.temperature, sampling.top_k) == (7, 0, 3)
    assert (sampling.seed, sampling.stop) == (5, ("x",))
    assert (asked(site).client, asked(site).cache_salt, asked(site).priority) == ("ann", "s", 2)


def test_a_safety_identifier_names_the_client(site) -> None:
    """It stands for `user`, which goes first where both are given."""
    ask(site, safety_identifier="u1")
    assert asked(site).client == "u1"
    ask(site, safety_identifier="u1", user="u2")
    assert asked(site).client == "u2"


def test_instructions_are_a_turn_before_all(site) -> None:
    """Of the system; empty ones are none."""
    said = Turn("user", (TextPart("hi"),))
    assert turns(site, "hi", instructions="be brief") == (
        Turn("system", (TextPart("be brief"),)),
        said,
    )
    assert turns(site, "hi", instructions="") == (said,)


def test_messages_become_turns(site) -> None:
    """Roles, texts and earlier answers, with a type or without."""
    items = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d", "type": None},
    ]
    assert turns(site, items) == (
        Turn("system", (TextPart("a"),)),
        Turn("user", (TextPart("b"),)),
        Turn("assistant", (TextPart("c"),)),
        Turn("user", (TextPart("d"),)),
    )


def test_an_answer_can_be_sent_back_as_it_came(site) -> None:
    """With its id, status, log-probabilities and what the client parsed."""
    (item,) = ask(site, "hello", include=LOGPROBS)["output"]
    item["content"][0]["parsed"] = {"a": 1}
    said = turns(site, [{"role": "user", "content": "hello"}, item, *user()])

    assert said[1] == Turn("assistant", (TextPart("hello"),))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_image", "image_url": URL},
        {"type": "input_image", "image_url": URL, "detail": "high"},
        {"type": "input_image", "image_url": URL, "detail": "original", "file_id": None},
        {"type": "image_url", "image_url": {"url": URL}},
    ],
)
def test_ways_to_send_a_picture(site, part) -> None:
    """By its address, in the spelling of this API or of chat."""
    (turn,) = turns(site, user({"type": "input_text", "text": "what?"}, part))
    assert turn.parts == (TextPart("what?"), ImagePart(UrlSource(URL)))


def uploaded(site: Any, content: bytes = PICTURE) -> str:
    """The id of an uploaded picture."""
    files = {"file": ("a.png", content)}
    return site.http.post("/v1/files", files=files, data={"purpose": "vision"}).json()["id"]


@pytest.mark.parametrize("field", ["file_id", "image_url"])
def test_a_picture_can_be_an_uploaded_file(site, field) -> None:
    """By `file_id`, or by its id as an address; `detail` bounds it all the same."""
    part = {"type": "input_image", field: uploaded(site), "detail": "low"}
    (turn,) = turns(site, user(part))

    assert turn.parts == (ImagePart(BytesSource(PICTURE), 512 * 512),)


def test_chat_takes_a_file_id_too(site) -> None:
    """The part is the same in both APIs."""
    content = [{"type": "input_image", "file_id": uploaded(site)}]
    response = site.chat(messages=[{"role": "user", "content": content}])

    assert response.status_code == 200
    assert asked(site).parts[0].parts == (ImagePart(BytesSource(PICTURE)),)


def test_a_file_that_is_not_there_is_not_found(site) -> None:
    """The refusal names the part."""
    part = {"type": "input_image", "file_id": "file-" + "0" * 32}
    error = refused(site, 404, input=user(part))
    assert error["param"] == "input[0].content[0].file_id"


def test_a_clip_takes_the_bodys_sampling(site) -> None:
    """`num_frames` and `max_pixels` are for all media that say nothing themselves."""
    part = {"type": "video_url", "video_url": {"url": URL, "num_frames": 3}}
    said = turns(site, user(part, {**part, "video_url": URL}), num_frames=9, max_pixels=900)

    clips = [VideoPart(UrlSource(URL), n, max_pixels=900) for n in (3, 9)]
    assert said[0].parts == tuple(clips)


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "2"}


def test_calls_stand_in_the_assistants_turn(site) -> None:
    """With the message before them and with each other; results follow as turns of the tool."""
    other = {**CALL, "call_id": "c2", "id": "fc_1", "status": "completed"}
    said = turns(
        site,
        [
            *user({"type": "input_text", "text": "go"}),
            {"role": "assistant", "content": "I will."},
            CALL,
            other,
            RESULT,
            {**RESULT, "call_id": "c2", "output": [{"type": "input_image", "image_url": URL}]},
            {**CALL, "call_id": "c3"},
        ],
    )
    first, second, third = (ToolCall(f"c{k}", "f", '{"a": 1}') for k in (1, 2, 3))

    assert said[1:] == (
        Turn("assistant", (TextPart("I will."),), tool_calls=(first, second)),
        Turn("tool", (TextPart("2"),), tool_call_id="c1"),
        Turn("tool", (ImagePart(UrlSource(URL)),), tool_call_id="c2"),
        Turn("assistant", (), tool_calls=(third,)),
    )


@pytest.mark.parametrize(
    ("given", "param"),
    [
        (None, "input"),
        ([], "input"),
        (5, "input"),
        ({}, "input"),
        ([5], "input[0]"),
        ([{"content": "x"}], "input[0].role"),
        ([{"role": "tool", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": "x", "name": "n"}], "input[0].name"),
        ([{"role": "user", "content": "x", "phase": "commentary"}], "input[0].phase"),
        ([{"role": "user", "content": "x", "status": "odd"}], "input[0].status"),
        ([{"type": "item_reference"}], "input[0].id"),
        ([{"type": "item_reference", "id": 5}], "input[0].id"),
        ([{"type": "reasoning", "id": "rs_1", "summary": []}], "input[0].type"),
        (user({"type": "input_file", "file_id": "file-1"}), "input[0].content[0].type"),
        (user({"type": "input_audio"}), "input[0].content[0].type"),
        (user({"type": "input_image"}), "input[0].content[0].image_url"),
        (user({"type": "input_image", "image_url": "x"}), "input[0].content[0].image_url"),
        (
            user({"type": "input_image", "image_url": URL, "file_id": "file-1"}),
            "input[0].content[0].file_id",
        ),
        (user({"type": "input_text", "txt": "x"}), "input[0].content[0].text"),
        ([{**CALL, "arguments": "5"}], "input[0].arguments"),
        ([{**CALL, "name": "a b"}], "input[0].name"),
        ([{**CALL, "namespace": "n"}], "input[0].namespace"),
        ([RESULT], "input[0].call_id"),
        ([CALL, {**RESULT, "call_id": "c2"}], "input[1].call_id"),
        ([CALL, {**RESULT, "output": None}], "input[1].output"),
    ],
)
def test_odd_items_are_refused_by_name(site, given, param) -> None:
    """Each with the place where it stands."""
    assert refused(site, input=given)["param"] == param


@pytest.mark.parametrize(
    ("part", "way"),
    [
        ({"type": "input_file", "file_id": "file-1"}, "input_image"),
        ({"type": "odd"}, "allowed is text, input_text"),
    ],
)
def test_a_refused_part_has_a_way_out(site, part, way) -> None:
    """What to send in its place."""
    assert way in refused(site, input=user(part))["message"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"conversation": "conv_1"}, "conversation", "previous_response_id"),
        ({"messages": []}, "messages", "send input"),
        ({"max_tokens": 5}, "max_tokens", "max_output_tokens"),
        ({"response_format": {"type": "text"}}, "response_format", "text.format"),
        ({"logprobs": True}, "logprobs", "include"),
        ({"background": True}, "background", "false"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "null"),
        ({"service_tier": "flex"}, "service_tier", "auto"),
        ({"prompt": {"id": "p"}}, "prompt", "null"),
        ({"max_tool_calls": 3}, "max_tool_calls", "null"),
        ({"n": 2}, "n", "1"),
        ({"tempature": 1}, "tempature", "temperature"),
        ({"temperature": "hot"}, "temperature", "a number"),
        ({"max_output_tokens": -1}, "max_output_tokens", "0 to"),
        ({"max_output_tokens": 3, "min_tokens": 5}, "min_tokens", "max_output_tokens"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"top_logprobs": 65, "include": LOGPROBS}, "top_logprobs", "0 to 64"),
        ({"include": ["odd"]}, "include[0]", "logprobs"),
        ({"include": "all"}, "include", "a list"),
        ({"store": "yes"}, "store", "true or false"),
        ({"stream_options": {}}, "stream_options", "stream"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
            "false",
        ),
        (
            {"stream": True, "stream_options": {"include_usage": True}},
            "stream_options.include_usage",
            "unknown",
        ),
        ({"instructions": ["x"]}, "instructions", "a string"),
        ({"user": "x" * 257}, "user", "256"),
        ({"prompt_cache_key": 5}, "prompt_cache_key", "a string"),
        ({"metadata": [1]}, "metadata", "16"),
        ({"metadata": {"a": 1}}, "metadata.a", "512"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", "512"),
        ({"metadata": {str(k): "" for k in range(17)}}, "metadata", "16"),
        ({"text": "plain"}, "text", "an object"),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "medium"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "json_schema"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "missing"),
        (
            {"text": {"format": {"type": "json_schema", "json_schema": {"schema": {}}}}},
            "text.format.json_schema",
            "beside type",
        ),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "unknown"),
        (
            {"text": {"format": {"type": "json_object"}}, "regex": "a"},
            "regex",
            "one constraint",
        ),
    ],
)
def test_odd_fields_are_refused_by_name(site, fields, param, words) -> None:
    """What is wrong, unknown or cannot be honoured, with the way out."""
    error = refused(site, **fields)
    assert error["param"] == param
    assert words in error["message"]
    assert site.client.requests == []


@pytest.mark.parametrize("is_stream", [False, True])
def test_refusals_have_their_status_in_streams_too(site, is_stream) -> None:
    """Before any byte of a stream is sent, whoever refuses."""
    part = {"type": "input_image", "file_id": uploaded(site, b"bad")}
    site.client.refusals["no"] = ConstraintRefused("an odd pattern", position=1)

    assert refused(site, stream=is_stream, temperature=-1)["param"] == "temperature"
    assert refused(site, 404, stream=is_stream, model="other")["param"] == "model"
    error = refused(site, stream=is_stream, input="no", regex="(")
    assert (error["code"], error["param"]) == ("constraint_refused", "regex")
    assert refused(site, stream=is_stream, input=user(part))["code"] == "media_refused"


@pytest.mark.parametrize(
    ("shape", "constraint"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, Constraint("json_object", "")),
        (
            {"type": "json_schema", "name": "s", "schema": SCHEMA},
            Constraint("json_schema", json.dumps(SCHEMA)),
        ),
    ],
)
def test_a_format_constrains_the_answer(site, shape, constraint) -> None:
    """As chat's `response_format` does."""
    ask(site, text={"format": shape})
    assert asked(site).sampling.constraint == constraint


@pytest.mark.parametrize(
    ("fields", "constraint"),
    [
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"choices": ["a", "b"]}, Constraint("choices", '["a", "b"]')),
        ({"ebnf": "root ::= x"}, Constraint("ebnf", "root ::= x")),
    ],
)
def test_extras_constrain_the_answer(site, fields, constraint) -> None:
    """The same as in chat."""
    ask(site, **fields)
    assert asked(site).sampling.constraint == constraint


def test_a_schema_is_refused_by_the_name_of_its_field(site) -> None:
    """The engine's refusal is told of `text.format`."""
    site.client.refusals["no"] = ConstraintRefused("odd", position=1)
    shape = {"type": "json_schema", "name": "s", "schema": {"type": "objekt"}}
    assert refused(site, input="no", text={"format": shape})["param"] == "text.format"


def test_log_probabilities_stand_beside_the_text(site) -> None:
    """One entry a token, with as many others as were asked for."""
    told = ask(site, "ab", include=LOGPROBS, top_logprobs=2)
    (part,) = told["output"][0]["content"]

    assert [entry["token"] for entry in part["logprobs"]] == ["a", "b"]
    assert [len(entry["top_logprobs"]) for entry in part["logprobs"]] == [2, 2]
    assert told["top_logprobs"] == 2
    assert set(part["logprobs"][0]) == {"token", "logprob", "bytes", "top_logprobs"}


def test_extras_are_told_when_asked_for(site) -> None:
    """Ids of tokens, times, and the frames of clips; pictures count in usage."""
    data = "data:video/mp4;base64," + base64.b64encode(b"x").decode()
    parts = [{"type": "video_url", "video_url": data}, {"type": "input_text", "text": "ab"}]
    told = ask(site, user(*parts), return_token_ids=True, return_timing=True)

    assert told["token_ids"] == [97, 98]
    assert told["prompt_token_ids"][0] == 256
    assert told["mmserve"]["timing_ms"]["prefill"] == 1.5
    assert told["mmserve"]["clips"] == [{"timestamps_s": [0.0, 0.5], "note": None}]
    assert told["usage"]["input_tokens_details"]["image_tokens"] == 4
