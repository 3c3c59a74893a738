"""Rows of drift files."""

from __future__ import annotations

import json

import pytest

from mmserve.batch import RowFault
from mmserve.batch.drift import Ask, parse_ask


def ask(**fields: object) -> Ask:
    """A row that is good."""
    found = parse_ask(3, json.dumps(fields).encode())
    assert isinstance(found, Ask), found
    return found


def test_a_prompt_is_one_user_message() -> None:
    """Silent rows take the default length, the default task and their line as id."""
    found = ask(prompt="Hi")
    assert found.body(7) == {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 7}
    assert (found.task, found.row_id) == ("all", "line-3")


def test_media_stand_before_the_words_of_the_last_user_message() -> None:
    """Pictures, then the clip with its sampling; addresses stay addresses."""
    messages = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    found = ask(messages=messages, images=["http://x/a.png"], video="http://x/b.mp4", fps=2)
    sent = found.body(7)["messages"]
    assert sent[:2] == messages[:2]
    assert sent[2]["content"] == [
        {"type": "image_url", "image_url": {"url": "http://x/a.png"}},
        {"type": "video_url", "video_url": {"url": "http://x/b.mp4", "fps": 2.0}},
        {"type": "text", "text": "three"},
    ]


def test_a_schema_goes_in_the_form_that_all_endpoints_know() -> None:
    """Other constraints go under their own names."""
    shaped = ask(prompt="x", json_schema={"type": "null"}).body(7)["response_format"]
    assert shaped["json_schema"]["schema"] == {"type": "null"}
    assert ask(prompt="x", choices=["a", "b"]).body(7)["choices"] == ["a", "b"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "prompt is missing"),
        ({"prompt": "x", "messages": [{"role": "user"}]}, "both given"),
        ({"messages": []}, "at least one message"),
        ({"messages": [{"content": "x"}]}, "an object with a role"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": "x", "regex": "a", "choices": ["a"]}, "give one"),
        ({"prompt": "x", "num_frames": 2}, "num_frames is for a video"),
        ({"prompt": "x", "question": "y"}, "unknown field"),
        ({"messages": [{"role": "system"}], "images": ["a"]}, "no user message"),
    ],
)
def test_a_row_at_fault_says_why(fields: dict[str, object], reason: str) -> None:
    """The line and the field are named."""
    found = parse_ask(3, json.dumps(fields).encode())
    assert isinstance(found, RowFault)
    assert found.message.startswith("line 3: ")
    assert reason in found.message
