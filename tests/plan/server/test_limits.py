"""Requests beyond the limits of the server and of one client."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from starlette.exceptions import HTTPException
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import Busy, ServerConfig
from mmserve.server import RunningServer
from mmserve.server.gate import Gate

LONG = "a" * 3000
KEYS = (("bob", "sk-bob"), ("eve", "sk-eve"))


@contextmanager
def limited(**settings: object) -> Iterator[Site]:
    """A server with some limits, which answers slowly."""
    client = EchoClient(pace_s=0.02)
    config = ServerConfig(port=0, **settings)
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


@contextmanager
def under_way(site: Site, key: str = "", **fields: object) -> Iterator[None]:
    """A stream that has begun and goes on for long."""
    body = {"messages": [{"role": "user", "content": LONG}], "stream": True, **fields}
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with site.http.stream(
        "POST", "/v1/chat/completions", json=body, headers=headers
    ) as response:
        assert response.status_code == 200
        pieces = response.iter_bytes(1)
        next(pieces)
        yield
        pieces.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Ask until it is so; fail after many times."""
    assert any(is_so() for _ in range(5000))


def test_a_full_server_refuses_and_says_when_to_come_back():
    """The next request is a 429, until one has ended."""
    with limited(max_open_requests=1) as site:
        with under_way(site):
            response = site.http.get("/v1/models")
            assert site.refused(response, 429)["code"] == "server_full"
            assert response.headers["Retry-After"] == "1"
            assert site.refused(response, 429)["type"] == "rate_limit_error"
        wait_until(lambda: site.http.get("/v1/models").status_code == 200)


@pytest.mark.parametrize("path", ["/health", "/livez", "/metrics", "/server_info"])
def test_a_full_server_can_be_watched(path: str):
    """What an operator looks at counts as no request."""
    with limited(max_open_requests=1) as site, under_way(site):
        assert site.http.get(path).status_code == 200


def test_a_full_server_can_be_freed():
    """Calls can be aborted while no other request is let in."""
    with limited(max_open_requests=1) as site, under_way(site, rid="one"):
        assert site.post("/abort_request", rid="one").status_code == 200
        wait_until(lambda: site.http.get("/v1/models").status_code == 200)


def test_one_client_is_limited_and_others_are_not():
    """By the key, before anything of the body is read."""
    with limited(max_client_requests=1, client_keys=KEYS) as site, under_way(site, "sk-bob"):
        refused = site.http.post("/generate", content="{", headers={"x-api-key": "sk-bob"})
        assert site.refused(refused, 429)["code"] == "client_full"
        assert refused.headers["Retry-After"] == "1"
        assert site.http.get("/v1/models", headers={"x-api-key": "sk-eve"}).status_code == 200


def test_users_of_a_shared_door_are_limited_by_name():
    """A request that generates is its user's; others of nobody are not counted."""
    with limited(max_client_requests=1) as site, under_way(site, user="zoe"):
        assert site.refused(site.chat("x", user="zoe"), 429)["code"] == "client_full"
        assert site.chat("x", user="tom").status_code == 200
        assert site.http.get("/v1/models").status_code == 200


def test_open_requests_are_told():
    """Whoever looks at the page is not among them."""
    with limited() as site:
        with under_way(site):
            assert "mmserve_open_requests 1.0" in site.http.get("/metrics").text
        wait_until(lambda: "mmserve_open_requests 0.0" in site.http.get("/metrics").text)


def test_answers_free_their_place_before_they_are_read():
    """Whoever has an answer may ask again at once."""
    with limited(max_client_requests=1, max_open_requests=1) as site:
        site.client.pace_s = 0
        for _ in range(50):
            assert site.chat("x").status_code == 200
            assert site.chat("x", stream=True).status_code == 200
            assert site.chat("x", n=0).status_code == 400


def test_refusals_of_the_engine_keep_their_code(site):
    """Its limit of waiting sequences is its own."""
    site.client.refusals["x"] = Busy("too many wait", retry_after_s=7)
    response = site.chat("x")
    assert site.refused(response, 429)["code"] == "busy"
    assert response.headers["Retry-After"] == "7"


def test_an_entry_leaves_once():
    """However often it is told to."""
    gate = Gate(1, 1)
    entry = gate.enter("bob")
    entry.leave()
    entry.leave()
    assert gate.num_open == 0
    gate.enter("bob")
    with pytest.raises(HTTPException):
        gate.enter("eve")


def test_an_entry_has_one_name():
    """The owner of the key, or the first name that is told."""
    gate = Gate(9, 1)
    gate.enter("bob").name("eve")
    unnamed = gate.enter("")
    unnamed.name("eve")
    unnamed.name("zoe")
    with pytest.raises(HTTPException):
        gate.enter("").name("eve")
    gate.enter("").name("zoe")


def test_an_entry_that_was_refused_its_name_counts_for_nobody():
    """It only counts among all."""
    gate = Gate(9, 1)
    first, second = gate.enter(""), gate.enter("")
    first.name("eve")
    with pytest.raises(HTTPException):
        second.name("eve")
    second.leave()
    first.leave()
    gate.enter("").name("eve")
    assert gate.num_open == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": ["a"] * 4097}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 33, "n": 128}, "n"),
        ("/generate", {"text": ["a"] * 4097}, "text"),
        ("/generate", {"input_ids": [[97]] * 33, "sampling_params": {"n": 128}}, "n"),
        ("/tokenize", {"prompt": ["a"] * 4097}, "prompt"),
    ],
)
def test_a_call_asks_for_so_many_answers_at_most(site, path: str, body: dict, param: str):
    """One body must not fill the line for everybody."""
    error = site.refused(site.http.post(path, json=body))
    assert error["param"] == param
    assert "4096" in error["message"]
    assert not site.client.requests
