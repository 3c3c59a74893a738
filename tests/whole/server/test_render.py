"""What a real engine renders and tells of its tree."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image
from support.oracle import image_part


@pytest.fixture
def http(server_url: str):
    """A client of the server."""
    with httpx.Client(base_url=server_url, trust_env=False, timeout=60) as http:
        yield http


def conversation(*content: dict[str, Any] | str, **fields: Any) -> dict[str, Any]:
    """A body of one turn."""
    parts = [{"type": "text", "text": p} if isinstance(p, str) else p for p in content]
    return {"messages": [{"role": "user", "content": parts}], **fields}


def rendered(http: httpx.Client, body: dict[str, Any]) -> dict[str, Any]:
    """The prompt of a body."""
    response = http.post("/v1/render", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def identities(tree: dict[str, Any]) -> set[str]:
    """Of all pictures and frames whose KV is there."""
    nodes = [node for node in tree["nodes"] if node["state"] in ("cached", "pinned")]
    return {p["identity"] for n in nodes for p in n["pieces"] if p["kind"] != "text"}


def test_the_prompt_is_the_one_that_chat_has(http: httpx.Client, pictures) -> None:
    """Token by token, with the picture in its place."""
    body = conversation(image_part(pictures[0]), "What is this?", max_tokens=2)
    prompt = rendered(http, body)
    answer = http.post("/v1/chat/completions", json={**body, "return_token_ids": True}).json()
    assert prompt["token_ids"] == answer["prompt_token_ids"]
    details = answer["usage"]["prompt_tokens_details"]
    assert prompt["usage"]["image_tokens"] == details["image_tokens"]
    assert "What is this?" in prompt["text"]
    (picture,) = (piece for piece in prompt["pieces"] if piece["kind"] == "picture")
    assert (picture["width"], picture["height"]) == (56, 56)
    content = base64.b64decode(picture["pictures"][0].partition(",")[2])
    assert Image.open(io.BytesIO(content)).size == (56, 56)


def test_rendering_leaves_no_trace(http: httpx.Client, pictures) -> None:
    """Nothing is encoded, generated or cached."""
    before = http.get("/show/radix.json").json()
    counted = http.get("/server_info").json()["counters"]
    rendered(http, conversation(image_part(pictures[0]), "Nobody asked this before."))
    after = http.get("/server_info").json()["counters"]
    assert http.get("/show/radix.json").json() == before
    for name in ("steps_total", "encoded_items_total", "slots_cached"):
        assert after[name] == counted[name]


def test_the_tree_names_what_was_rendered(http: httpx.Client, pictures) -> None:
    """One identity in the prompt and in the tree, for whoever has the picture and its salt."""
    http.post("/flush_cache?timeout=20")
    body = conversation(image_part(pictures[0]), "Which?", max_tokens=2)
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    (mine,) = (p["identity"] for p in rendered(http, body)["pieces"] if p["kind"] == "picture")
    tree = http.get("/show/radix.json").json()
    assert identities(tree) == {mine}
    salted = rendered(http, {**body, "cache_salt": "somebody"})
    assert mine not in {piece.get("identity") for piece in salted["pieces"]}


def test_the_tree_tells_no_text(http: httpx.Client) -> None:
    """Neither what was asked nor the salt it was asked under."""
    words = "Zanzibar marmalade"
    body = conversation(words, max_tokens=2, cache_salt="my secret salt")
    assert http.post("/v1/chat/completions", json=body).status_code == 200
    told = http.get("/show/radix.json").text
    assert "secret" not in told
    ids = http.post("/tokenize", json={"prompt": words}).json()["tokens"]
    assert json.dumps(ids)[1:-1] not in told
    spaces = [node["namespace"] for node in json.loads(told)["nodes"] if node["parent"] is None]
    assert any(space.startswith("salt:") for space in spaces)


def test_memory_adds_up(http: httpx.Client) -> None:
    """Slots held, kept and free are all slots; nothing runs or waits."""
    told = http.get("/show/radix.json").json()
    slots = told["slots"]
    assert slots["held"] + slots["cached"] + slots["free"] == slots["all"] == 8192
    assert told["queue"] == {"running": 0, "waiting": 0}
    assert told["features"]["kept"] <= told["features"]["all"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"regex": "("}, "regex"),
        ({"choices": []}, "choices"),
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
    ],
)
def test_forms_are_checked_as_by_chat(
    http: httpx.Client, fields: dict[str, Any], param: str
) -> None:
    """A form that chat refuses is refused in the same words."""
    body = conversation("x", **fields)
    here, there = (
        http.post("/v1/render", json=body),
        http.post("/v1/chat/completions", json=body),
    )
    assert (here.status_code, here.json()) == (there.status_code, there.json())
    assert here.json()["error"]["param"] == param


def test_bad_pictures_and_long_prompts_are_refused(http: httpx.Client) -> None:
    """By the number of the picture, or the tokens that are too many."""
    bad = http.post("/v1/render", json=conversation(image_part(b"no picture"), "x"))
    assert (bad.status_code, bad.json()["error"]["code"]) == (400, "media_refused")
    long = http.post("/v1/render", json=conversation("word " * 2000))
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_too_long")
