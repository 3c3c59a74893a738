"""Web pages of other origins: only those that are named may read an answer."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.echo_client import EchoClient

from mmserve.core import BadRequest, ServerConfig
from mmserve.server import RunningServer

PAGE = "https://page.example"
ASKED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A server for one page, behind a key."""
    config = ServerConfig(port=0, api_key="sesame", cors_origins=(PAGE,))
    with (
        RunningServer(EchoClient(), config) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        yield http


def test_no_page_may_call_by_default(site):
    """Answers say nothing of origins, and there is no preflight."""
    assert (
        "Access-Control-Allow-Origin"
        not in site.http.get("/v1/models", headers={"Origin": PAGE}).headers
    )
    preflight = site.http.options("/v1/chat/completions", headers={"Origin": PAGE, **ASKED})
    assert preflight.status_code == 405
    assert not [name for name in preflight.headers if name.startswith("access-control")]


def test_a_named_page_may_ask_before_it_calls(http):
    """A preflight carries no key and needs none; no cookies are ever allowed."""
    preflight = http.options("/v1/chat/completions", headers={"Origin": PAGE, **ASKED})
    assert preflight.status_code == 200
    assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
    assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
    assert "Access-Control-Allow-Credentials" not in preflight.headers
    assert "Origin" in preflight.headers["Vary"]


SDKS = {
    "openai-js": "authorization, content-type, openai-organization, openai-project, "
    "user-agent, x-stainless-arch, x-stainless-lang, x-stainless-os, "
    "x-stainless-package-version, "
    "x-stainless-retry-count, x-stainless-runtime, x-stainless-runtime-version, "
    "x-stainless-timeout, x-stainless-helper-method, idempotency-key",
    "anthropic-js": "anthropic-beta, anthropic-dangerous-direct-browser-access, "
    "anthropic-version, content-type, x-api-key, x-stainless-helper",
}


@pytest.mark.parametrize("sdk", SDKS)
def test_a_named_page_may_send_what_the_official_clients_send(http, sdk: str):
    """Every header that they ask for is allowed by name: a star would not cover the key's."""
    asked = {**ASKED, "Access-Control-Request-Headers": SDKS[sdk]}
    preflight = http.options("/v1/messages", headers={"Origin": PAGE, **asked})
    assert preflight.status_code == 200
    allowed = preflight.headers["Access-Control-Allow-Headers"].lower().split(", ")
    assert set(SDKS[sdk].split(", ")) <= set(allowed)


@pytest.mark.parametrize("key", ["sesame", "wrong"])
def test_a_named_page_reads_answers_and_errors(http, key: str):
    """A refusal without the header would look like a failure of the network."""
    response = http.get("/v1/models", headers={"Origin": PAGE, "x-api-key": key})
    assert response.status_code == (200 if key == "sesame" else 401)
    assert response.headers["Access-Control-Allow-Origin"] == PAGE
    told = response.headers["Access-Control-Expose-Headers"]
    assert told == "X-Request-Id, request-id, Retry-After"


@pytest.mark.parametrize(
    "origin",
    ["https://other.example", "https://page.example.evil", "http://page.example", "null"],
)
def test_other_pages_read_nothing(http, origin: str):
    """Neither by asking before, nor by calling."""
    headers = {"Origin": origin, "x-api-key": "sesame"}
    preflight = http.options("/v1/chat/completions", headers={**headers, **ASKED})
    assert preflight.status_code == 400
    assert "Access-Control-Allow-Origin" not in preflight.headers
    response = http.get("/v1/models", headers=headers)
    assert "Access-Control-Allow-Origin" not in response.headers


@pytest.mark.parametrize(
    "origin", ["*", "page.example", "https://page.example/", "https://*.example", "null", ""]
)
def test_what_is_no_origin_is_refused(origin: str):
    """Above all the one that means everybody."""
    with pytest.raises(BadRequest) as refused:
        ServerConfig(cors_origins=(origin,))
    assert refused.value.param == "cors_origins"
