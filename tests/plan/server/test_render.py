"""`/v1/render`: a chat request's prompt, piece by piece."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from mmserve.core import ConstraintRefused, ContextTooLong

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
CLIP = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}


def rendered(site, *content: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The prompt of one turn with this content."""
    messages = [{"role": "user", "content": list(content)}]
    response = site.post("/v1/render", messages=messages, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def words(text: str) -> dict[str, str]:
    """A part of text."""
    return {"type": "text", "text": text}


def test_text_is_told_token_by_token(site) -> None:
    """Token ids, their texts, and the template text."""
    prompt = rendered(site, words("hé"))
    assert prompt["text"] == "<s>[user]hé[assistant]"
    (piece,) = prompt["pieces"]
    assert (piece["kind"], piece["start"]) == ("text", 0)
    assert piece["num_tokens"] == len(prompt["token_ids"]) == len(piece["tokens"])
    assert piece["tokens"][:2] == ["<s>", "["]
    assert prompt["usage"] == {
        "prompt_tokens": len(prompt["token_ids"]),
        "image_tokens": 0,
        "video_tokens": 0,
    }


def test_pieces_cover_the_prompt(site) -> None:
    """Text, pictures and frames follow each other without a gap."""
    prompt = rendered(site, words("a"), PICTURE, CLIP, words("b"))
    kinds = [piece["kind"] for piece in prompt["pieces"]]
    assert kinds == ["text", "picture", "frame", "text"]
    end = 0
    for piece in prompt["pieces"]:
        assert piece["start"] == end
        end += piece["num_tokens"]
    assert end == len(prompt["token_ids"])
    assert prompt["usage"]["image_tokens"] == prompt["usage"]["video_tokens"] == 4


def test_media_are_shown(site) -> None:
    """With identity, size, times and small pictures; the text has one placeholder for each."""
    prompt = rendered(site, PICTURE, CLIP)
    picture, frame = (p for p in prompt["pieces"] if p["kind"] != "text")
    assert (picture["width"], picture["height"], picture["timestamps_s"]) == (8, 6, [])
    assert picture["identity"] != frame["identity"]
    assert frame["timestamps_s"] == [0.0, 0.5]
    shown = [address.removeprefix("data:image/jpeg;base64,") for address in frame["pictures"]]
    assert [base64.b64decode(content) for content in shown] == [b"one", b"two"]
    assert prompt["clips"] == [{"timestamps_s": [0.0, 0.5], "note": None}]
    assert prompt["text"] == "<s>[user]<echo_image><echo_image>[assistant]"


def test_nothing_is_generated(site) -> None:
    """No request is handed in, whatever the body says of streams and tokens."""
    rendered(site, words("x"), stream=True, max_tokens=5, return_timing=True)
    assert site.client.requests == []


def test_uploaded_files_are_found(site) -> None:
    """An id stands for its file, of the caller alone."""
    form = {"file": ("a.png", b"content"), "purpose": (None, "vision")}
    file_id = site.http.post("/v1/files", files=form).json()["id"]
    prompt = rendered(site, {"type": "image_url", "image_url": {"url": file_id}})
    assert prompt["usage"]["image_tokens"] == 4
    messages = [{"role": "user", "content": [PICTURE | {"image_url": {"url": file_id}}]}]
    headers = {"Authorization": "Bearer somebody else"}
    other = site.http.post("/v1/render", json={"messages": messages}, headers=headers)
    assert site.refused(other, 404)["param"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}], "tempature": 1}, "tempature"),
        ({"messages": [{"role": "user", "content": "a"}], "temperature": -1}, "temperature"),
        ({"messages": [{"role": "user", "content": "a"}], "model": "other"}, "model"),
        (
            {"messages": [{"role": "user", "content": [{"type": "smell"}]}]},
            "messages[0].content[0].type",
        ),
    ],
)
def test_wrong_bodies_are_refused_as_by_chat(site, fields: dict[str, Any], param: str) -> None:
    """Status and error object are those of `/v1/chat/completions`."""
    here = site.post("/v1/render", **fields)
    there = site.post("/v1/chat/completions", **fields)
    assert (here.status_code, here.json()) == (there.status_code, there.json())
    assert here.json()["error"]["param"] == param


def test_what_the_engine_refuses_is_told(site) -> None:
    """A prompt that is too long has its error, and so has a form, by the client's field."""
    site.client.refusals["long"] = ContextTooLong("too long", tokens=9, limit_tokens=8)
    messages = [{"role": "user", "content": "long"}]
    refused = site.refused(site.post("/v1/render", messages=messages))
    assert refused["code"] == "context_too_long"
    site.client.refusals["odd"] = ConstraintRefused("odd", field="regex", reason="syntax")
    messages = [{"role": "user", "content": "odd"}]
    shape = {"type": "json_schema", "json_schema": {"schema": {}}}
    body = {"messages": messages, "response_format": shape}
    assert site.refused(site.post("/v1/render", **body))["param"] == "response_format"


def test_other_methods_are_refused(site) -> None:
    """There is nothing to read without a body."""
    site.refused(site.http.get("/v1/render"), 405)
