"""Kept responses: told again, continued, listed, deleted; whose they are; within limits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from plan.server.test_file_store import Clock
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import BadRequest, BytesSource, ImagePart, ServerConfig, TextPart, Turn
from mmserve.server import RunningServer
from mmserve.server.conversation_store import ConversationStore

PICTURE = b"\x89PNG of no use"
UNKNOWN = "resp_" + "0" * 32
ROOM = 60_000


def ask(http: httpx.Client, given: object = "hello", **fields: Any) -> Any:
    """The response to an input."""
    response = http.post("/v1/responses", json={"input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def texts(site: Site) -> list[tuple[str, str]]:
    """Role and text of what the engine was shown last, without the turn to be answered."""
    return [
        (turn.role, "".join(part.text for part in turn.parts))
        for turn in site.client.requests[-1].parts[:-1]
    ]


@pytest.fixture
def clock() -> Clock:
    """Time in `small`."""
    return Clock()


@pytest.fixture
def small(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A server that keeps some responses for 100 s, for two clients with their keys."""
    new = partial(ConversationStore, clock=clock)
    monkeypatch.setattr("mmserve.server.app.ConversationStore", new)
    config = ServerConfig(
        port=0,
        response_store_bytes=ROOM,
        response_expiry_s=100,
        client_keys=(("ann", "sk-ann"), ("bob", "sk-bob")),
    )
    client = EchoClient()
    with (
        RunningServer(client, config) as server,
        httpx.Client(base_url=server.url, headers={"x-api-key": "sk-ann"}) as http,
    ):
        yield Site(server.url, client, http)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_response_is_told_again(site, is_stream) -> None:
    """As it was answered, whole or in events."""
    if is_stream:
        stream = site.post("/v1/responses", input="hello", stream=True)
        name = stream.text.split('"id":"')[1].split('"')[0]
        told = site.http.get(f"/v1/responses/{name}").json()
        assert told["status"] == "completed"
        assert told["output"][0]["content"][0]["text"] == "hello"
    else:
        first = ask(site.http)
        assert site.http.get(f"/v1/responses/{first['id']}").json() == first


def test_a_response_is_continued(site) -> None:
    """What was said and answered goes before; instructions are only for their own response."""
    site.client.answers["one"] = "1"
    first = ask(site.http, "one", instructions="count")
    second = ask(site.http, "two", previous_response_id=first["id"], instructions="be brief")
    ask(site.http, "three", previous_response_id=second["id"])

    assert second["previous_response_id"] == first["id"]
    assert texts(site) == [
        ("user", "one"),
        ("assistant", "1"),
        ("user", "two"),
        ("assistant", "two"),
        ("user", "three"),
    ]
    ask(site.http, "other", previous_response_id=first["id"])
    assert texts(site)[2:] == [("user", "other")]


def test_pictures_are_continued(site) -> None:
    """Though the file has been deleted, and with the bounds that held when it was sent."""
    files = {"file": ("a.png", PICTURE)}
    upload = site.http.post("/v1/files", files=files, data={"purpose": "vision"})
    file_id = upload.json()["id"]
    part = {"type": "input_image", "file_id": file_id}
    first = ask(site.http, [{"role": "user", "content": [part]}], max_pixels=900)
    site.http.delete(f"/v1/files/{file_id}")
    ask(site.http, "and?", previous_response_id=first["id"])

    said = site.client.requests[-1].parts
    assert said[0] == Turn("user", (ImagePart(BytesSource(PICTURE), 900),))
    assert said[2] == Turn("user", (TextPart("and?"),))


def test_an_answer_that_was_cut_is_continued_so_far(site) -> None:
    """Its text is there; a call without its end is not."""
    cut = ask(site.http, "hello", max_output_tokens=2)
    ask(site.http, "go on", previous_response_id=cut["id"])
    assert texts(site)[1] == ("assistant", "he")

    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    answer = '{"name":"f","arguments":{"a":"long"}}'
    fields = {"tools": [tool], "tool_choice": "required"}
    cut = ask(site.http, answer, max_output_tokens=30, **fields)
    (call,) = cut["output"]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "x"}
    refused = site.post("/v1/responses", input=[result], previous_response_id=cut["id"])
    assert site.refused(refused)["param"] == "input[0].call_id"
    ask(site.http, "again", previous_response_id=cut["id"])
    assert site.client.requests[-1].parts[1] == Turn("assistant", ())


def test_what_is_not_to_be_kept_is_not(site) -> None:
    """It says so, and cannot be named."""
    told = ask(site.http, store=False)

    assert told["store"] is False
    site.refused(site.http.get(f"/v1/responses/{told['id']}"), 404)
    response = site.post("/v1/responses", input="x", previous_response_id=told["id"])
    assert site.refused(response, 404)["param"] == "previous_response_id"


def test_a_deleted_response_is_not_found(site) -> None:
    """Like one that never was; what continued it goes on."""
    first = ask(site.http, "one")
    second = ask(site.http, "two", previous_response_id=first["id"])
    path = f"/v1/responses/{first['id']}"
    gone = site.http.delete(path).json()

    assert gone == {"id": first["id"], "object": "response", "deleted": True}
    for method, end in [("GET", ""), ("GET", "/input_items"), ("DELETE", "")]:
        error = site.refused(site.http.request(method, path + end), 404)
        unknown = site.http.request(method, f"/v1/responses/{UNKNOWN}{end}")
        assert (
            error["message"].replace(first["id"], UNKNOWN)
            == (site.refused(unknown, 404)["message"])
        )
    ask(site.http, "three", previous_response_id=second["id"])
    assert [text for _, text in texts(site)] == ["one", "one", "two", "two", "three"]


def items(site: Site, response_id: str, **query: Any) -> Any:
    """A page of what a response answers to."""
    response = site.http.get(f"/v1/responses/{response_id}/input_items", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def test_what_was_said_is_listed(site) -> None:
    """In the form of this API, each with an id and as it was sent."""
    part = {"type": "input_image", "image_url": "http://h/a.png", "detail": "low"}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    told = ask(
        site.http,
        [
            {"role": "user", "content": [part, {"type": "input_text", "text": "what?"}]},
            {"role": "assistant", "content": "wait", "id": "msg_own"},
            call,
            {"type": "function_call_output", "call_id": "c", "output": "5"},
        ],
        instructions="not listed",
    )
    listed = items(site, told["id"], order="asc")
    ids = [item.pop("id") for item in listed["data"]]

    assert listed["object"] == "list"
    assert (listed["first_id"], listed["last_id"]) == (ids[0], ids[-1])
    assert not listed["has_more"]
    assert ids[1] == "msg_own"
    assert [name.split("_")[0] for name in ids] == ["msg", "msg", "fc", "fco"]
    assert {item.pop("status") for item in listed["data"]} == {"completed"}
    wait = {"type": "output_text", "text": "wait", "annotations": [], "logprobs": []}
    assert listed["data"] == [
        {
            "type": "message",
            "role": "user",
            "content": [part, {"type": "input_text", "text": "what?"}],
        },
        {"type": "message", "role": "assistant", "content": [wait]},
        call,
        {"type": "function_call_output", "call_id": "c", "output": "5"},
    ]


def test_what_is_continued_is_listed_too(site) -> None:
    """The latest first, in pages."""
    first = ask(site.http, "one")
    second = ask(site.http, "two", previous_response_id=first["id"])
    listed = items(site, second["id"])["data"]
    page = items(site, second["id"], limit=2)
    rest = items(site, second["id"], limit=2, after=page["last_id"])

    assert [item["content"][0]["text"] for item in listed] == ["two", "one", "one"]
    assert [item["role"] for item in listed] == ["user", "assistant", "user"]
    assert listed[1]["id"] == first["output"][0]["id"]
    assert page["data"] + rest["data"] == listed
    assert (page["has_more"], rest["has_more"]) == (True, False)


def test_listed_items_can_be_sent_again(site) -> None:
    """The model is shown the same."""
    first = ask(site.http, "one")
    second = ask(site.http, "two", previous_response_id=first["id"])
    shown = site.client.requests[-1].parts
    ask(site.http, items(site, second["id"], order="asc")["data"])
    assert site.client.requests[-1].parts == shown


def test_an_answer_can_be_named_by_its_id(site) -> None:
    """In place of the item itself, whose response is kept; a call, too."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    first = ask(site.http, "one")
    called = ask(site.http, '{"name":"f","arguments":{"a":1}}', tools=[tool])
    (message,), (call,) = first["output"], called["output"]
    given = [
        {"role": "user", "content": "one"},
        {"type": "item_reference", "id": message["id"]},
        {"type": "item_reference", "id": call["id"]},
        {"type": "function_call_output", "call_id": call["call_id"], "output": "5"},
    ]
    told = ask(site.http, given)
    said = site.client.requests[-1].parts

    assert said[1].parts == (TextPart("one"),)
    assert [one.arguments for one in said[1].tool_calls] == ['{"a": 1}']
    assert items(site, told["id"], order="asc")["data"][1] == message
    site.http.delete(f"/v1/responses/{called['id']}")
    error = site.refused(site.post("/v1/responses", input=given), 404)
    assert error["param"] == "input[2].id"


@pytest.mark.parametrize(
    ("path", "param", "status"),
    [
        ("?stream=true", "stream", 400),
        ("?starting_after=3", "starting_after", 400),
        ("?include=odd", "include", 400),
        ("?odd=1", "odd", 400),
        ("/input_items?limit=0", "limit", 400),
        ("/input_items?limit=101", "limit", 400),
        ("/input_items?limit=x", "limit", 400),
        ("/input_items?order=up", "order", 400),
        ("/input_items?after=msg_1", "after", 404),
        ("/input_items?before=msg_1", "before", 400),
        ("/input_items?include[]=odd", "include", 400),
    ],
)
def test_odd_queries_are_refused(site, path, param, status) -> None:
    """Each with the field's name."""
    name = ask(site.http)["id"]
    error = site.refused(site.http.get(f"/v1/responses/{name}{path}"), status)
    assert error["param"] == param


@pytest.mark.parametrize("query", ["stream=false", "include[]=message.output_text.logprobs"])
def test_what_changes_nothing_may_be_asked(site, query) -> None:
    """What is kept has all that it was answered with."""
    told = ask(site.http)
    assert site.http.get(f"/v1/responses/{told['id']}?{query}").json() == told


def test_a_response_of_somebody_else_does_not_exist(small) -> None:
    """Not to be seen, continued, listed or deleted; the refusal is that of an unknown id."""
    told, key = ask(small.http), {"x-api-key": "sk-bob"}
    name = told["id"]
    path = f"/v1/responses/{name}"
    body = {"input": "x", "previous_response_id": name}
    refused = small.http.post("/v1/responses", json=body, headers=key)
    unknown = small.http.post(
        "/v1/responses", json={**body, "previous_response_id": UNKNOWN}, headers=key
    )

    assert refused.status_code == unknown.status_code == 404
    assert refused.text.replace(name, UNKNOWN) == unknown.text
    item = {"type": "item_reference", "id": told["output"][0]["id"]}
    named = small.http.post("/v1/responses", json={"input": [item]}, headers=key)
    assert small.refused(named, 404)["param"] == "input[0].id"
    for method, end in [("GET", ""), ("GET", "/input_items"), ("DELETE", "")]:
        assert small.http.request(method, path + end, headers=key).status_code == 404
    assert small.http.get(path).status_code == 200


def test_keys_of_an_open_server_are_told_apart(site) -> None:
    """A response belongs to who sent the same key."""
    response = site.http.post(
        "/v1/responses", json={"input": "x"}, headers={"Authorization": "Bearer one"}
    )
    path = f"/v1/responses/{response.json()['id']}"

    assert site.http.get(path, headers={"Authorization": "Bearer one"}).status_code == 200
    assert site.http.get(path, headers={"Authorization": "Bearer two"}).status_code == 404
    assert site.http.get(path).status_code == 404


def test_responses_expire_after_their_last_use(small, clock: Clock) -> None:
    """Looking at one is a use, and so is continuing it."""
    first, second = ask(small.http)["id"], ask(small.http)["id"]
    clock.now_s = 1099
    assert small.http.get(f"/v1/responses/{first}").status_code == 200
    clock.now_s = 1150
    ask(small.http, previous_response_id=first)
    clock.now_s = 1249

    assert small.http.get(f"/v1/responses/{first}").status_code == 200
    assert small.http.get(f"/v1/responses/{second}").status_code == 404


def test_the_least_recently_used_response_leaves_first(small) -> None:
    """When there is no room for all of them."""
    names = [ask(small.http, "x" * 15_000, max_output_tokens=1)["id"] for _ in range(2)]
    small.http.get(f"/v1/responses/{names[0]}")
    for _ in range(20):
        names.append(ask(small.http, "x" * 15_000, max_output_tokens=1)["id"])
        told = small.http.get("/server_info").json()["counters"]
        assert told["response_bytes"] <= ROOM
        if told["response_evictions_total"]:
            break

    found = [small.http.get(f"/v1/responses/{name}").status_code for name in names]
    assert found == [200, 404, *[200] * (len(names) - 2)]


def test_what_is_too_large_to_be_kept(small) -> None:
    """Is refused if it must be kept, and else answered without, which the response says."""
    words = "x" * ROOM
    refused = small.http.post("/v1/responses", json={"input": words, "store": True})
    error = small.refused(refused)

    assert error["param"] == "store"
    assert "--response-store-bytes" in error["message"]
    told = ask(small.http, words, max_output_tokens=1)
    assert told["store"] is False
    assert small.http.get(f"/v1/responses/{told['id']}").status_code == 404


def test_what_is_too_large_with_its_answer_is_not_kept(small) -> None:
    """The response says so, as there was no way to know before."""
    words = "x" * (ROOM - 3000)
    told = ask(small.http, words, max_output_tokens=1, metadata={"a": "x" * 512}, store=True)

    assert (told["store"], told["status"]) == (False, "incomplete")
    assert small.http.get(f"/v1/responses/{told['id']}").status_code == 404


def test_responses_are_counted(small) -> None:
    """In the metrics, from the start."""

    def told() -> list[str]:
        page = small.http.get("/metrics").text.splitlines()
        return [line for line in page if line.startswith("mmserve_response")]

    assert told()[:2] == ["mmserve_responses 0.0", "mmserve_response_bytes 0.0"]
    ask(small.http)
    assert told()[0] == "mmserve_responses 1.0"
    assert float(told()[1].split()[1]) > 1000
    assert told()[2:] == [
        "mmserve_response_evictions_total 0.0",
        "mmserve_response_expirations_total 0.0",
    ]


@pytest.mark.parametrize("expiry_s", [0, -1, float("nan"), float("inf"), 1e9])
def test_responses_expire_after_some_time(expiry_s: float) -> None:
    """Not at once, and not never."""
    with pytest.raises(BadRequest, match="response_expiry_s"):
        ServerConfig(response_expiry_s=expiry_s)


def test_a_request_can_be_found_by_its_own_id(site) -> None:
    """The header has it; the response has an id of this server all the same."""
    response = site.post("/v1/responses", input="x", rid="mine")
    other = site.post("/v1/responses", input="x")

    assert response.headers["X-Request-Id"] == "mine"
    assert response.json()["id"].startswith("resp_")
    assert other.headers["X-Request-Id"] == other.json()["id"]
