"""Bodies that come slowly, packed, or not to their end."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest
from support.departures import wait_until
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import ServerConfig
from mmserve.server import RunningServer

HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"


@pytest.fixture(scope="module")
def impatient() -> Iterator[Site]:
    """A server that waits a tenth of a second for a body."""
    client = EchoClient()
    config = ServerConfig(port=0, body_timeout_s=0.1)
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


def connect(site: Site) -> socket.socket:
    """A connection of one's own."""
    address = urlsplit(site.url)
    return socket.create_connection((address.hostname, address.port), timeout=10)


def told_of(site: Site, route: str) -> str:
    """What the metrics say of requests on a route."""
    lines = site.http.get("/metrics").text.splitlines()
    named = [line for line in lines if f'route="{route}"' in line]
    return "\n".join(line for line in named if line.startswith("mmserve_requests_total"))


def test_a_body_that_stops_is_given_up(impatient: Site) -> None:
    """With a 408 that tells how far it came; the connection ends, the place is free."""
    with connect(impatient) as wire:
        wire.sendall(HEAD % b"/generate" + b'{"te')
        answer = b"".join(iter(lambda: wire.recv(4096), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    error = json.loads(body)["error"]
    assert error["code"] == "body_too_slow"
    assert " 4 bytes " in error["message"]
    assert impatient.post("/generate", text="x").status_code == 200


def test_who_leaves_during_its_body_is_no_failure(
    impatient: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """It is counted among those that left, and nothing is logged as an error."""
    with connect(impatient) as wire:
        wire.sendall(HEAD % b"/v1/completions" + b"{")
    wait_until(lambda: "aborted" in told_of(impatient, "/v1/completions"))
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_a_packed_body_is_refused_by_that_name(site: Site) -> None:
    """A client that packs must learn that it should not."""
    packed = gzip.compress(b'{"text": "x"}')
    headers = {"Content-Encoding": "gzip"}
    response = site.http.post("/generate", content=packed, headers=headers)
    assert site.refused(response)["message"].startswith(
        'the request body has the content encoding "gzip"'
    )


def test_an_absent_body_is_said_to_be_empty(site: Site) -> None:
    """Not that a value was expected at some character."""
    error = site.refused(site.http.post("/v1/chat/completions"))
    assert error["message"] == "the request body is not valid JSON: it is empty"
