"""The id of every request, and the one line of log that it gets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import httpx
import pytest
from support.echo_client import EchoClient
from support.site import Site, events_of

from mmserve.core import RunnerFailed, ServerConfig
from mmserve.server import RunningServer
from mmserve.server.watch.lines import log_to_stderr

SECRET = "xyzzy-secret"
KEYS = (("bob", "sk-bob-key"),)


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The log of everything from INFO on."""
    caplog.set_level(logging.INFO, logger="mmserve")
    return caplog


def requests(caplog: pytest.LogCaptureFixture) -> list[dict]:
    """What lines tell of requests."""
    return [record.request for record in caplog.records if hasattr(record, "request")]


@pytest.fixture(scope="module")
def keyed() -> Iterator[Site]:
    """A server where bob has a key."""
    client = EchoClient()
    config = ServerConfig(port=0, api_key="sk-all-key", client_keys=KEYS)
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None),
        ("GET", "/nope", None),
        ("GET", "/v1/chat/completions", None),
        ("POST", "/v1/chat/completions", "{"),
        ("POST", "/tokenize", '{"prompt": "a"}'),
        ("HEAD", "/metrics", None),
        ("OPTIONS", "/generate", None),
    ],
)
def test_every_answer_has_the_id_that_was_sent(site, method, path, body):
    """Errors of every kind, too; without one it gets one of its own."""
    response = site.http.request(method, path, content=body, headers={"X-Request-Id": "mine-1"})
    assert response.headers.get_list("X-Request-Id") == ["mine-1"]
    one, two = (site.http.request(method, path, content=body) for _ in range(2))
    assert one.headers["X-Request-Id"] != two.headers["X-Request-Id"]


def test_refusals_at_the_door_have_the_id(keyed):
    """Nobody has read the request by then."""
    response = keyed.http.get("/v1/models", headers={"X-Request-Id": "mine-2"})
    assert (response.status_code, response.headers["X-Request-Id"]) == (401, "mine-2")


def test_failures_have_the_id(site):
    """Those that nobody foresaw, and streams."""
    site.client.refusals["boom"] = ValueError("x")
    messages = [{"role": "user", "content": "boom"}]
    headers = {"X-Request-Id": "mine-3"}
    response = site.http.post(
        "/v1/chat/completions", json={"messages": messages}, headers=headers
    )
    assert (response.status_code, response.headers["X-Request-Id"]) == (500, "mine-3")
    body = {"messages": [{"role": "user", "content": "fine"}], "stream": True}
    response = site.http.post("/v1/chat/completions", json=body, headers=headers)
    assert response.headers["X-Request-Id"] == "mine-3" == events_of(response)[0]["id"]


@pytest.mark.parametrize("odd", ["a b", "x" * 129, "ü"])
def test_an_id_that_cannot_be_echoed_is_replaced(site, odd: str):
    """Where the route does not refuse it."""
    response = site.http.get("/health", headers={"X-Request-Id": odd.encode()})
    assert response.status_code == 200
    assert response.headers["X-Request-Id"].isalnum()


def test_a_request_is_one_line(site, told):
    """Who, which route, what came of it, tokens and times; the id is the answer's."""
    answer = site.chat("abc", stream=False)
    (line,) = requests(told)
    assert line["id"] == answer.json()["id"] == answer.headers["X-Request-Id"]
    usage = answer.json()["usage"]
    assert line["prompt_tokens"] == usage["prompt_tokens"]
    assert line["completion_tokens"] == usage["completion_tokens"] == 3
    assert line["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
    assert (line["method"], line["route"]) == ("POST", "/v1/chat/completions")
    assert (line["status"], line["reason"]) == (200, "stop")
    assert 0 <= line["first_token_ms"] <= line["total_ms"]
    assert line["prefill_ms"] == 1.5


def test_refusals_are_lines_with_their_code(site, told):
    """Without tokens, as there are none."""
    site.chat("x", n=0)
    site.http.get("/nope")
    site.http.get("/v1/models/none-such")
    assert [(line["route"], line["status"], line["reason"]) for line in requests(told)] == [
        ("/v1/chat/completions", 400, "bad_request"),
        ("other", 404, "not_found"),
        ("/v1/models/{name:path}", 404, "not_found"),
    ]
    assert "prompt_tokens" not in requests(told)[0]


def test_failures_on_the_way_are_told(site, told):
    """The status was sent before, the reason says what happened."""
    site.client.failures["abcdef"] = (3, RunnerFailed("gone"))
    site.chat("abcdef", stream=True)
    (line,) = requests(told)
    assert (line["status"], line["reason"]) == (200, "runner_failed")


def test_probes_that_go_well_are_no_lines(site, told):
    """They come every second; those that fail are."""
    site.http.get("/health")
    site.http.get("/metrics")
    assert requests(told) == []
    site.client.is_broken = True
    site.http.get("/health")
    assert [line["status"] for line in requests(told)] == [503]


def test_lines_hold_neither_content_nor_keys(keyed, told):
    """Of answers, refusals and failures; users are told by a digest."""
    keyed.client.refusals[f"{SECRET} boom"] = ValueError(SECRET)
    keyed.client.failures[f"{SECRET} half"] = (3, RunnerFailed("gone"))
    for key in ("sk-all-key", "sk-bob-key", "sk-wrong-key"):
        headers = {"Authorization": f"Bearer {key}"}
        for text in (SECRET, f"{SECRET} boom", f"{SECRET} half"):
            for more in ({}, {"stream": True}, {SECRET: 1}, {"regex": f"({SECRET}"}):
                body = {
                    "messages": [{"role": "user", "content": text}],
                    "user": f"{SECRET}@example.org",
                    "cache_salt": SECRET,
                    **more,
                }
                keyed.http.post("/v1/chat/completions", json=body, headers=headers)
        keyed.http.get(f"/{SECRET}?{SECRET}", headers=headers)
    lines = requests(told)
    assert len(lines) == 39
    whole = told.text + json.dumps(lines)
    assert SECRET not in whole
    assert "-key" not in whole.replace("invalid_api_key", "")
    assert {line["client"][:5] for line in lines} == {"", "bob", "user:"}


def test_lines_can_be_json(site, capsys):
    """Each by itself, with a time and a level; other messages, too."""
    with log_to_stderr("json"):
        site.chat("abc")
        logging.getLogger("mmserve.other").warning('a "message"\nof two lines')
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["request", "log"]
    assert lines[0]["route"] == "/v1/chat/completions"
    assert lines[0]["time"].endswith("Z")
    assert (lines[1]["level"], lines[1]["logger"]) == ("warning", "mmserve.other")


def test_lines_can_be_text(site, capsys):
    """With what is read first at the front."""
    with log_to_stderr("text"):
        site.chat("abc")
    (line,) = capsys.readouterr().err.splitlines()
    assert " info POST /v1/chat/completions 200 stop id=chatcmpl-" in line
    assert " completion_tokens=3 " in line


def test_lines_can_be_off(site, capsys):
    """Then stderr has nothing of a request."""
    with log_to_stderr("off"):
        site.chat("abc")
    assert capsys.readouterr().err == ""
