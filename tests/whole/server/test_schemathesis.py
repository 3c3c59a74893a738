"""A server of a real engine keeps to what `/openapi.json` says, whatever it is sent."""

from __future__ import annotations

import httpx
from support.schema_run import explore, tiny_server_config

from mmserve.core import ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

NUM_EXAMPLES = 400


def test_made_up_requests_get_documented_answers():
    """No 5xx, no status, header or form of answer that is not written down."""
    with (
        Engine.from_config(tiny_server_config()) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        found = explore(server.url, NUM_EXAMPLES)
        assert httpx.get(f"{server.url}/health_generate", timeout=60).status_code == 200
    assert found == {}
