"""One server over a client that echoes, reset before every test."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from support.echo_client import EchoClient
from support.site import Site

from mmserve.core import ServerConfig
from mmserve.server import RunningServer

MAX_BODY_BYTES = 200_000


@pytest.fixture(scope="session")
def shared_site() -> Iterator[Site]:
    """The server, for all tests of the room."""
    client = EchoClient()
    config = ServerConfig(port=0, max_body_bytes=MAX_BODY_BYTES)
    with RunningServer(client, config) as server, httpx.Client(base_url=server.url) as http:
        yield Site(server.url, client, http)


@pytest.fixture
def site(shared_site: Site) -> Site:
    """The server with a client that has seen nothing yet."""
    shared_site.client.reset()
    return shared_site
