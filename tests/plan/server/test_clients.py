"""Who a client is: a pure rule, and the same on every route."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import ServerConfig
from mmserve.server import RunningServer
from mmserve.server.clients import Caller, caller_of, client_of, key_of, may_enter

CLOSED = ServerConfig(api_key="shared", client_keys=(("bob", "sk-bob"), ("eve", "sk-eve-Ü")))
OPEN = ServerConfig()
NOBODY = Caller()
MESSAGES = [{"role": "user", "content": "hi"}]


def name(key: str, config: ServerConfig = OPEN, **said: str) -> str:
    """The client of a request with this key."""
    return client_of(caller_of(key.encode(), config), **said)


def test_an_own_key_names_its_owner_whatever_is_said():
    """Its holder gets no second turn by making up users or salts."""
    assert name("sk-bob", CLOSED) == "bob"
    assert name("sk-bob", CLOSED, user="x", cache_salt="y") == "bob"
    assert name("sk-eve-Ü", CLOSED) == "eve"


def test_a_shared_key_leaves_it_to_the_user():
    """Everybody has it, so it tells nobody apart."""
    assert name("shared", CLOSED, user="alice", cache_salt="y") == "alice"
    assert name("shared", CLOSED) == ""


def test_a_key_that_nobody_checks_is_a_name_after_the_user():
    """Clients of an open server send any key, often all the same."""
    assert name("EMPTY", user="alice") == "alice"
    assert name("one") == name("one", cache_salt="y") != name("two")
    assert name("one").startswith("key:")


def test_a_salt_is_the_last_name():
    """Tenants are apart in the queue as they are in the cache."""
    assert client_of(NOBODY, cache_salt="one") == client_of(NOBODY, cache_salt="one")
    assert client_of(NOBODY, cache_salt="one") != client_of(NOBODY, cache_salt="two")
    assert client_of(NOBODY) == ""


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_users_are_two_clients(one, two):
    """No mark makes two names one."""
    assert (client_of(NOBODY, user=one) == client_of(NOBODY, user=two)) == (one == two)


@pytest.mark.parametrize("config", [OPEN, CLOSED])
def test_no_user_passes_for_somebody_else(config):
    """Neither for the owner of a key, nor for a key or a salt."""
    caller = caller_of(b"shared", config)
    others = ["bob", name("one"), client_of(NOBODY, cache_salt="one")]
    names = [client_of(caller, user=other) for other in others[config is OPEN :]]
    assert not set(names) & set(others)


@given(st.text(min_size=6), st.text(min_size=6))
def test_names_hold_neither_key_nor_salt(key, salt):
    """Both are secrets; names stand in metrics."""
    assert key not in name(key)
    assert salt not in client_of(NOBODY, cache_salt=salt)


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ([(b"authorization", b"Bearer  a b ")], b"a b"),
        ([(b"authorization", b"bearer a")], b"a"),
        ([(b"authorization", b"Basic a")], b""),
        ([(b"authorization", b"Basic a"), (b"x-api-key", b"b")], b"b"),
        ([(b"x-api-key", b"b")], b"b"),
        ([], b""),
    ],
)
def test_the_key_of_headers(headers, key):
    """A bearer token goes before the other header."""
    assert key_of(headers) == key


@pytest.mark.parametrize(
    ("config", "key", "enters"),
    [
        (OPEN, b"", True),
        (OPEN, b"x", True),
        (CLOSED, b"shared", True),
        (CLOSED, b"sk-bob", True),
        (CLOSED, "sk-eve-Ü".encode(), True),
        (CLOSED, b"", False),
        (CLOSED, b"bob", False),
        (ServerConfig(client_keys=(("bob", "sk-bob"),)), b"sk-bob", True),
        (ServerConfig(client_keys=(("bob", "sk-bob"),)), b"", False),
    ],
)
def test_who_may_enter(config, key, enters):
    """Any configured key opens the door; without one it is open."""
    assert may_enter(key, config) is enters


@pytest.fixture(scope="module")
def closed() -> Iterator[Site]:
    """A server where bob has a key of his own."""
    client = EchoClient()
    config = ServerConfig(port=0, api_key=CLOSED.api_key, client_keys=CLOSED.client_keys)
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES, "user": "zoe"}),
        ("/v1/completions", {"prompt": ["a", "b"], "user": "zoe"}),
        ("/generate", {"text": "a"}),
    ],
)
def test_every_route_names_the_same_client(closed, path, fields):
    """The engine is told the owner of the key."""
    for header in ({"Authorization": "Bearer sk-bob"}, {"x-api-key": "sk-bob"}):
        response = closed.http.post(path, json=fields, headers=header)
        assert response.status_code == 200
        assert closed.client.requests[-1].client == "bob"


def test_a_native_request_has_salts_for_a_name(closed):
    """It has no `user`; `extra_key` is part of the salt."""
    header = {"x-api-key": "shared"}
    seen = []
    for fields in ({}, {"cache_salt": "a"}, {"cache_salt": "a", "extra_key": "b"}):
        closed.http.post("/generate", json={"text": "x", **fields}, headers=header)
        seen.append(closed.client.requests[-1].client)
    assert seen[0] == ""
    assert len(set(seen)) == 3


def test_no_page_tells_a_clients_key(closed):
    """Names are told, keys are stars, even to those who may come in."""
    response = closed.http.get("/server_info", headers={"x-api-key": "sk-bob"})
    assert response.json()["settings"]["client_keys"] == {"bob": "***", "eve": "***"}
    metrics = closed.http.get("/metrics", headers={"x-api-key": "sk-bob"})
    assert "sk-" not in response.text + metrics.text
