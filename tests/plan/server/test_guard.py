"""The API key, routes that are not there, and bodies that are too large."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.echo_client import EchoClient

from mmserve.core import ServerConfig
from mmserve.server import RunningServer, create_app

KEY = "sesame-Ü"
ROUTES = sorted({route.path for route in create_app(EchoClient(), ServerConfig()).routes})
OPEN = {"/health", "/livez", "/", *(path for path in ROUTES if path.startswith("/page/"))}


@pytest.fixture(scope="module")
def locked() -> Iterator[httpx.Client]:
    """A server that wants a key."""
    config = ServerConfig(port=0, api_key=KEY)
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        yield http


def spellings(path: str) -> list[str]:
    """Ways to write a path that a careless guard lets pass."""
    return [
        path,
        f"{path}/",
        f"/{path}",
        path.replace("/", "/%2f", 1),
        f"{path}%2f",
    ]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE"])
def test_no_route_answers_without_the_key(locked: httpx.Client, method: str) -> None:
    """Every route, spelling and method is 401 but those of health and the page's own files."""
    for path in [*ROUTES, "/nope", "/"]:
        for spelling in spellings(path):
            response = locked.request(method, spelling)
            sent = response.request.url.raw_path.decode()  # of "//" httpx makes "/"
            if sent not in OPEN:
                assert response.status_code == 401, (method, spelling)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {KEY}".encode()},
        {"Authorization": "Bearer"},
        {"Authorization": ""},
        {"x-api-key": "wrong"},
    ],
)
def test_wrong_keys_are_refused_in_json(locked: httpx.Client, headers: dict) -> None:
    """The refusal has the form of every error."""
    response = locked.get("/v1/models", headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "name", ["Authorization: Bearer ", "Authorization: bearer ", "x-api-key: "]
)
def test_the_right_key_passes(locked: httpx.Client, name: str) -> None:
    """Both spellings of the scheme, and the other header."""
    header, _, kind = name.partition(": ")
    response = locked.get("/v1/models", headers={header: (kind + KEY).encode()})
    assert response.status_code == 200


def test_health_needs_no_key(locked: httpx.Client) -> None:
    """Probes have none."""
    for path in OPEN:
        assert locked.get(path).status_code == 200
        assert locked.head(path).status_code == 200


def test_the_key_is_never_told(locked: httpx.Client) -> None:
    """Not even to those who have it."""
    response = locked.get("/server_info", headers={"x-api-key": KEY.encode()})
    assert response.json()["settings"]["api_key"] == "***"
    assert KEY not in response.text


@pytest.mark.parametrize("path", ["/nope", "/health/", "//v1/models", "/v1", "/docs"])
def test_unknown_paths_are_404_in_json(site, path: str) -> None:
    """No redirect, no HTML."""
    assert site.refused(site.http.get(path), 404)["code"] == "not_found"


def test_wrong_methods_are_405_in_json(site) -> None:
    """And say which there are."""
    response = site.http.get("/v1/chat/completions")
    assert site.refused(response, 405)["code"] == "method_not_allowed"
    assert "POST" in response.headers["Allow"]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/v1/files", "GET, HEAD, POST"),
        ("/v1/files/file-1", "DELETE, GET, HEAD"),
        ("/generate", "POST, PUT"),
    ],
)
def test_a_wrong_method_is_told_all_right_ones(site, path: str, allowed: str) -> None:
    """Not those of the first route that has the path."""
    response = site.http.patch(path)
    assert (response.status_code, response.headers["Allow"]) == (405, allowed)


def test_head_is_get_without_a_body(site) -> None:
    """On every route that can be got."""
    for path in ("/health", "/v1/models", "/metrics", "/model_info"):
        response = site.http.head(path)
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("size", [200_001, 500_000, 5_000_000])
def test_large_bodies_are_413(site, size: int) -> None:
    """The refusal is told, whether the rest was read or not."""
    body = b'{"text": "' + b"a" * (size - 12) + b'"}'
    try:
        response = site.http.post("/generate", content=body)
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        assert size > 1_000_000
    else:
        assert site.refused(response, 413)["code"] == "body_too_large"


def test_bodies_at_the_limit_pass(site) -> None:
    """The limit itself is allowed."""
    head = b'{"sampling_params": {"max_new_tokens": 0}, "text": "'
    body = head + b"a" * (200_000 - len(head) - 2) + b'"}'
    assert site.http.post("/generate", content=body).status_code == 200


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"5", b"{", b'{"text": "\\ud83d"}', b'{"text": NaN}']
)
def test_bodies_that_are_no_objects_are_refused(site, body: bytes) -> None:
    """Alike on every route that takes one."""
    for path in ("/generate", "/v1/chat/completions", "/v1/completions", "/tokenize"):
        site.refused(site.http.post(path, content=body))


def test_payloads_are_not_repeated(site) -> None:
    """At most a hundred characters of what was sent come back."""
    secret = "QUFB" * 10_000
    for body in (
        {"text": "x", "image_data": f"*{secret}"},
        {"text": "x", secret: 1},
        {"text": "x", "sampling_params": {"regex": [secret]}},
        {"text": "x", "priority": secret},
    ):
        response = site.post("/generate", **body)
        site.refused(response)
        assert "QUFB" * 25 not in response.text
        assert len(response.content) < 1000


def test_an_unforeseen_failure_is_json(site, caplog) -> None:
    """A 500 without its words; the log has them, in short lines."""
    site.client.refusals["boom"] = RuntimeError("secret" + "x" * 5000)
    response = site.chat("boom")
    assert site.refused(response, 500)["code"] == "internal_error"
    assert "secret" not in response.text
    assert max(map(len, caplog.text.splitlines())) < 2000
