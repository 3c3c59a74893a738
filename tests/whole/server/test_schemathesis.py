"""A server of a real engine keeps to what `/openapi.json` says, whatever it is sent."""

from __future__ import annotations

import httpx
from support.echo_client import EchoClient
from support.schema_run import explore, tiny_server_config

from mmserve.core import ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer, create_app

NUM_EXAMPLES = 600


def test_made_up_requests_get_documented_answers():
    """No 5xx, no status, header or form of answer that is not written down."""
    with (
        Engine.from_config(tiny_server_config()) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        found = explore(server.url, NUM_EXAMPLES)
        page = httpx.get(f"{server.url}/metrics", timeout=60).text
        assert httpx.get(f"{server.url}/health_generate", timeout=60).status_code == 200
    assert found == {}
    for route in (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/v1/systemone",
        "/generate",
    ):
        for status in ("200", "400"):
            assert f'mmserve_http_requests_total{{route="{route}",status="{status}"}}' in page


def test_what_is_not_written_down_is_found():
    """A status, and an answer of another form."""
    app = create_app(EchoClient(), ServerConfig())
    with RunningServer(EchoClient(), ServerConfig(port=0)) as server:
        told = app.openapi()
        told["paths"] = {path: told["paths"][path] for path in ("/detokenize", "/v1/models")}
        del told["paths"]["/detokenize"]["post"]["responses"]["400"]
        models = told["paths"]["/v1/models"]["get"]["responses"]["200"]["content"]
        models["application/json"]["schema"]["required"] = ["nothing"]
        found = explore(server.url, 40, document=told)
    assert set(found) == {"POST /detokenize", "GET /v1/models"}
