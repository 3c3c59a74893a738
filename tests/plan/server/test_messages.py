"""Messages as turns."""

from __future__ import annotations

import pytest

from mmserve.core import BadRequest, ImagePart, TextPart, ToolCall, Turn, UrlSource, VideoPart
from mmserve.server.chat.messages import turns_of
from mmserve.server.media import MediaDefaults

A, B = "data:image/png;base64,AAAA", "http://h/b.png"


def turns(*messages: object, **defaults: int) -> tuple[Turn, ...]:
    """Messages read under these defaults."""
    return turns_of(list(messages), "messages", MediaDefaults(**defaults))


def content(*parts: object, role: str = "user", **defaults: int) -> tuple:
    """The parts of one message."""
    return turns({"role": role, "content": list(parts)}, **defaults)[0].parts


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_parts_keep_their_order_in_every_role(role: str) -> None:
    """Text and pictures stand where they stood, in system and assistant turns too."""
    parts = content(
        {"type": "text", "text": "A"},
        {"type": "image_url", "image_url": {"url": A}},
        {"type": "text", "text": "B"},
        {"type": "image_url", "image_url": B},
        {"type": "text", "text": "C"},
        role=role,
    )
    first, second = ImagePart(UrlSource(A)), ImagePart(UrlSource(B))
    assert parts == (TextPart("A"), first, TextPart("B"), second, TextPart("C"))


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": B}},
        {"type": "image_url", "image_url": {"url": B, "detail": "auto"}},
        {"type": "image_url", "image_url": B},
        {"type": "input_image", "image_url": B, "detail": "high"},
        {"type": "input_image", "image_url": {"url": B}},
        {"type": "image", "source": {"type": "url", "url": B}},
    ],
)
def test_ways_to_write_a_picture(part: dict) -> None:
    """All spellings give the same part."""
    assert content(part) == (ImagePart(UrlSource(B)),)


def test_anthropic_base64_is_a_data_address() -> None:
    """Media type and data become one address, which the guards read."""
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    assert content({"type": "image", "source": source}) == (ImagePart(UrlSource(A)),)


def test_low_detail_bounds_the_size() -> None:
    """`detail: low` is at most 512 x 512 pixels."""
    low = content({"type": "image_url", "image_url": {"url": B, "detail": "low"}})
    assert low == (ImagePart(UrlSource(B), 512 * 512),)


def test_clips() -> None:
    """A clip's own sampling comes before the body's."""
    part = {"type": "video_url", "video_url": {"url": B, "num_frames": 3, "start_s": 1}}
    assert content(part, fps=2, num_frames=9) == (VideoPart(UrlSource(B), 3, 2, 1.0),)
    short = content({"type": "video_url", "video_url": B})
    assert short == (VideoPart(UrlSource(B)),)


@pytest.mark.parametrize("empty", ["", None, []])
def test_empty_content_is_an_empty_turn(empty: object) -> None:
    """Empty text, no parts and null are the same."""
    assert turns({"role": "user", "content": empty}) == (Turn("user", ()),)


def test_developers_speak_as_the_system() -> None:
    """The newer name of the role."""
    assert turns({"role": "developer", "content": "x"})[0].role == "system"


def test_our_own_answers_can_be_sent_back() -> None:
    """The null fields of an answered message pass."""
    answer = {"role": "assistant", "content": "x", "refusal": None, "tool_calls": None}
    assert turns({**answer, "annotations": []}) == (Turn("assistant", (TextPart("x"),)),)


def called(**function: object) -> dict:
    """An assistant's message that only calls."""
    whole = {"name": "f", "arguments": '{"a": 1}', **function}
    call = {"id": "call_1", "type": "function", "function": whole}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def test_calls_and_their_results() -> None:
    """A call keeps id, name and arguments; a result may have pictures and names its call."""
    result = [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": B}}]
    found = turns(called(), {"role": "tool", "tool_call_id": "call_1", "content": result})
    assert found == (
        Turn("assistant", (), tool_calls=(ToolCall("call_1", "f", '{"a": 1}'),)),
        Turn("tool", (TextPart("x"), ImagePart(UrlSource(B))), tool_call_id="call_1"),
    )


@pytest.mark.parametrize("arguments", ["", None, "{}"])
def test_a_call_may_have_no_arguments(arguments: str | None) -> None:
    """Nothing is an empty object."""
    (call,) = turns(called(arguments=arguments))[0].tool_calls
    assert call.arguments in ("", "{}")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["x"], "messages[0]"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "tool_call_id": "c"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": "bob"}], "messages[0].name"),
        ([{"role": "user", "content": "x", "tone": 1}], "messages[0].tone"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "function_call": {}}], "messages[0].function_call"),
        ([called(name="a b")], "messages[0].tool_calls[0].function.name"),
        ([called(arguments="[]")], "messages[0].tool_calls[0].function.arguments"),
        ([called(arguments="{")], "messages[0].tool_calls[0].function.arguments"),
        (
            [called(arguments='{"a":' * 200 + "1" + "}" * 200)],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([called(arguments={})], "messages[0].tool_calls[0].function.arguments"),
        ([called(tone="x")], "messages[0].tool_calls[0].function.tone"),
    ],
)
def test_refusals_name_the_place(messages: list, param: str) -> None:
    """What is wrong is named with its whole path."""
    with pytest.raises(BadRequest) as caught:
        turns(*messages)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "url", ["/etc/passwd", 5, None, {"url": "x.png"}, {}, {"url": B, "x": 1}]
)
def test_bad_pictures_are_refused(url: object) -> None:
    """Paths, wrong kinds and unknown fields."""
    with pytest.raises(BadRequest):
        content({"type": "image_url", "image_url": url})
