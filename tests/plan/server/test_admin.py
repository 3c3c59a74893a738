"""Who may do what only the operator may, which keys share a cache, and what is guarded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import BadRequest, ServerConfig
from mmserve.server import RunningServer, create_app
from mmserve.server.admin import ADMIN_PATHS
from mmserve.server.clients import caller_of, client_of, is_admin, may_enter, scoped_salt
from mmserve.server.guard import OPEN_PATHS
from mmserve.server.page.files import page_types

KEYS = (("bob", "sk-bob"), ("eve", "sk-eve"))
ADMIN, SHARED = "sk-admin", "sk-shared"


@contextmanager
def serving(**settings: object) -> Iterator[Site]:
    """A server with these settings."""
    client = EchoClient()
    config = ServerConfig(**{"port": 0, **settings})
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


def status(site: Site, path: str, key: str = "", **headers: str) -> int:
    """The status of a GET with this key."""
    given = {"Authorization": f"Bearer {key}", **headers} if key else headers
    return site.http.get(path, headers=given).status_code


@pytest.mark.parametrize("path", sorted(ADMIN_PATHS))
def test_operators_routes_want_the_operators_key(path: str):
    """No client's key opens them, nor the key of all."""
    with serving(admin_key=ADMIN, api_key=SHARED, client_keys=KEYS) as site:
        assert [status(site, path, key) for key in ("", "x", SHARED, "sk-bob", ADMIN)] == [
            401,
            401,
            403,
            403,
            200,
        ]


def test_without_its_own_key_the_shared_one_is_the_operators():
    """Keys of clients are not."""
    with serving(api_key=SHARED, client_keys=KEYS) as site:
        assert status(site, "/flush_cache", SHARED) == 200
        assert status(site, "/flush_cache", "sk-bob") == 403


def test_clients_keys_alone_make_nobody_the_operator():
    """Somebody has to be named as such."""
    with serving(client_keys=KEYS) as site:
        refused = site.http.get("/flush_cache", headers={"x-api-key": "sk-bob"})
        assert site.refused(refused, 403)["code"] == "admin_only"


@pytest.mark.parametrize(
    ("host", "may"),
    [
        ("127.0.0.1", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
    ],
)
def test_a_server_without_keys_is_its_own_machines(host: str, may: bool):
    """Whoever can only be here may; once others can reach it, nobody may."""
    assert is_admin(b"", ServerConfig(host=host)) is may


def test_an_operators_key_alone_leaves_the_rest_open():
    """It guards what it is for, and opens the rest like any other."""
    with serving(admin_key=ADMIN) as site:
        assert status(site, "/v1/models") == status(site, "/v1/models", ADMIN) == 200
        assert status(site, "/show/radix") == 401
        assert status(site, "/show/radix", "x") == 403
        assert status(site, "/show/radix", ADMIN) == 200
        assert status(site, "/show/radix.json", "x") == 403


@pytest.mark.parametrize("site_word", ["cross-site", "same-site"])
def test_pages_of_other_sites_are_not_the_operator(site_word: str):
    """A browser says where a request comes from; with a key it may come from anywhere."""
    with serving() as site:
        headers = {"Sec-Fetch-Site": site_word}
        refused = site.http.get("/flush_cache", headers=headers)
        assert site.refused(refused, 403)["code"] == "cross_site"
    with serving(admin_key=ADMIN) as site:
        assert status(site, "/flush_cache", ADMIN, **headers) == 200


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", "[::", ""])
def test_other_names_are_not_the_machine(host: str):
    """A page whose name was made to lead here is not the operator either."""
    with serving() as site:
        refused = site.http.get("/flush_cache", headers={"Host": host})
        assert refused.status_code == 403
        for own in ("localhost:1", "[::1]:1", "127.0.0.2"):
            assert site.http.get("/flush_cache", headers={"Host": own}).status_code == 200


def test_aborting_all_is_the_operators():
    """And changes nothing if it is refused."""
    with serving(admin_key=ADMIN, client_keys=KEYS) as site:
        for key, code in (("sk-bob", 403), (ADMIN, 200)):
            response = site.http.post(
                "/abort_request", json={"abort_all": True}, headers={"x-api-key": key}
            )
            assert response.status_code == code


def test_clients_abort_their_own_calls_only():
    """An id that two clients use is two ids."""
    with serving(client_keys=KEYS, api_key=SHARED) as site:
        site.client.pace_s = 0.02
        body = {"text": "a" * 3000, "rid": "same", "stream": True}
        with site.http.stream(
            "POST", "/generate", json=body, headers={"x-api-key": "sk-bob"}
        ) as stream:
            pieces = stream.iter_bytes(1)
            next(pieces)
            for key in ("sk-eve", SHARED):
                headers = {"x-api-key": key}
                assert (
                    site.http.post(
                        "/abort_request", json={"rid": "same"}, headers=headers
                    ).status_code
                    == 200
                )
                assert not site.client.tickets[-1].is_cancelled
            site.http.post(
                "/abort_request", json={"rid": "same"}, headers={"x-api-key": "sk-bob"}
            )
            assert site.client.tickets[-1].is_cancelled


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/systemone",
        "/generate",
    ],
)
def test_each_key_has_a_cache_of_its_own(path: str):
    """Equal prompts of two keys, and equal salts, are apart; one key's are together."""
    bodies = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/completions": {"prompt": "x"},
        "/v1/responses": {"input": "x"},
        "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 9},
        "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
        "/v1/systemone": {"state": "x", "questions": [{"type": "yes_no"}]},
        "/generate": {"text": "x"},
    }
    with serving(client_keys=KEYS, api_key=SHARED, namespace_by_key=True) as site:
        for key in ("sk-bob", "sk-bob", "sk-eve", SHARED):
            for salt in ("", "s"):
                body = {**bodies[path], "cache_salt": salt}
                site.http.post(path, json=body, headers={"x-api-key": key})
        salts = [request.cache_salt for request in site.client.requests]
    assert salts[:2] == salts[2:4]
    assert len(set(salts)) == 6
    assert salts[6:] == ["", "s"]
    assert not [salt for salt in salts for _, key in KEYS if key in salt]


def test_hints_go_to_the_caches_of_their_keys():
    """What is prepared for one is not there for another, and is for its requests."""
    with serving(client_keys=KEYS, namespace_by_key=True) as site:
        headers = {"x-api-key": "sk-bob"}
        media = {"media": [{"image": "QUFB"}], "cache_salt": "s"}
        assert site.http.post("/prepare", json=media, headers=headers).status_code == 200
        site.http.post("/generate", json={"text": "x", "cache_salt": "s"}, headers=headers)
        assert site.client.prepared[0][1] == site.client.requests[0].cache_salt != "s"


def test_what_questions_hold_goes_to_the_caches_of_their_keys():
    """What a state names over the network is fetched where the questions look for it."""
    with serving(client_keys=KEYS, namespace_by_key=True) as site:
        picture = {"type": "image_url", "image_url": {"url": "http://h/a"}}
        body = {"state": [picture], "questions": [{"type": "yes_no"}], "cache_salt": "s"}
        asked = site.http.post("/v1/systemone", json=body, headers={"x-api-key": "sk-bob"})
        assert asked.status_code == 200
        assert site.client.held[0][1] == site.client.requests[0].cache_salt != "s"


def test_prompts_are_rendered_in_the_caches_of_their_keys(monkeypatch):
    """Media that one key has sent are looked up for that key alone."""
    seen = []
    render = EchoClient.render

    def watched(self, request):
        seen.append(request.cache_salt)
        return render(self, request)

    monkeypatch.setattr(EchoClient, "render", watched)
    body = {"messages": [{"role": "user", "content": "x"}], "cache_salt": "s"}
    with serving(client_keys=KEYS, namespace_by_key=True) as site:
        for path in ("/v1/render", "/v1/chat/completions"):
            asked = site.http.post(path, json=body, headers={"x-api-key": "sk-bob"})
            assert asked.status_code == 200
        assert seen == [site.client.requests[0].cache_salt]
        assert seen != ["s"]


def test_names_of_clients_do_not_change_with_their_namespaces():
    """Queues and metrics are as before."""
    plain = ServerConfig(client_keys=KEYS)
    apart = ServerConfig(client_keys=KEYS, namespace_by_key=True)
    for key in (b"sk-bob", b"other", b""):
        one, two = caller_of(key, plain), caller_of(key, apart)
        assert client_of(one, cache_salt="s") == client_of(two, cache_salt="s")
        assert scoped_salt(one, "s") == "s"


def test_the_operators_key_names_nobody():
    """It owns what all own."""
    config = ServerConfig(admin_key=ADMIN, client_keys=KEYS, namespace_by_key=True)
    caller = caller_of(ADMIN.encode(), config)
    assert (caller.owner, caller.key, caller.namespace) == ("", "", "")
    assert may_enter(ADMIN.encode(), config)


@pytest.mark.parametrize(
    "settings",
    [
        {"admin_key": ""},
        {"admin_key": "a", "api_key": "a"},
        {"admin_key": "sk-bob", "client_keys": KEYS},
    ],
)
def test_keys_that_tell_nobody_apart_are_refused(settings: dict):
    """The operator's is nobody else's."""
    with pytest.raises(BadRequest) as refused:
        ServerConfig(**settings)
    assert refused.value.param == "admin_key"


def test_every_route_but_the_open_ones_wants_a_key():
    """Each route of the app, by each of its methods."""
    config = ServerConfig(port=0, admin_key=ADMIN, api_key=SHARED)
    routes = create_app(EchoClient(), config).routes
    assert len(routes) > 30
    with serving(admin_key=ADMIN, api_key=SHARED) as site:
        for route in routes:
            for method in route.methods:
                path = route.path.replace("{id}", "x").replace("{name:path}", "x")
                response = site.http.request(method, path)
                is_open = path in OPEN_PATHS or path in page_types()
                assert (response.status_code == 401) is not is_open, path


def test_no_key_is_told():
    """The settings have stars in their places."""
    with serving(admin_key=ADMIN, api_key=SHARED, client_keys=KEYS) as site:
        response = site.http.get("/server_info", headers={"x-api-key": ADMIN})
        assert response.json()["settings"]["admin_key"] == "***"
        for key in (ADMIN, SHARED, "sk-bob"):
            assert key not in response.text
            assert key not in repr(ServerConfig(admin_key=ADMIN, api_key=SHARED))
