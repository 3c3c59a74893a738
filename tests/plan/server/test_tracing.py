"""Spans of requests and their stages, as an exporter gets them."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.echo_client import EchoClient

from mmserve.core import BadRequest, MissingExtra, ServerConfig
from mmserve.server import RunningServer, create_app
from mmserve.server.watch.tracing import Tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Keeps what it gets."""
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    """Hands each span on at once."""
    tracing = Tracing(SimpleSpanProcessor(exporter))
    yield tracing
    tracing.close()


async def ask(tracing: Tracing, text: str = "abc", **headers: str) -> httpx.Response:
    """One conversation with an app that is traced."""
    app = create_app(EchoClient(), ServerConfig(), tracing)
    body = {"messages": [{"role": "user", "content": text}], "user": "zoe@example.org"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://x"
    ) as http:
        return await http.post("/v1/chat/completions", json=body, headers=headers)


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    """The spans so far."""
    return {span.name: span for span in exporter.get_finished_spans()}


def run(coroutine: object) -> object:
    """The coroutine's result."""
    return asyncio.run(coroutine)


def test_a_request_is_a_span_with_its_stages_inside(exporter, tracing):
    """Each within the time of the whole, with the tokens of its usage."""
    usage = run(ask(tracing)).json()["usage"]
    spans = by_name(exporter)
    assert set(spans) == {"POST /v1/chat/completions", "prefill"}
    whole, stage = spans["POST /v1/chat/completions"], spans["prefill"]
    assert stage.parent.span_id == whole.context.span_id
    assert whole.start_time <= stage.start_time <= stage.end_time <= whole.end_time
    assert whole.attributes["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert whole.attributes["gen_ai.usage.output_tokens"] == 3
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["mmserve.reason"] == "stop"


def test_spans_belong_to_the_callers_trace(exporter, tracing):
    """If it names one."""
    run(ask(tracing, traceparent=f"00-{TRACE}-{PARENT}-01"))
    whole = by_name(exporter)["POST /v1/chat/completions"]
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert f"{whole.parent.span_id:016x}" == PARENT


def test_spans_hold_no_content(exporter, tracing):
    """Neither what was asked, nor by whom."""
    run(ask(tracing, "xyzzy-secret", authorization="Bearer sk-key"))
    words = "".join(span.to_json() for span in exporter.get_finished_spans())
    assert words
    for secret in ("xyzzy", "zoe", "sk-key"):
        assert secret not in words


def test_without_the_packages_it_is_said_what_to_install(monkeypatch):
    """At the start, not at the first request."""
    monkeypatch.delitem(sys.modules, "mmserve.server.watch.tracing")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    config = ServerConfig(otlp_endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(MissingExtra, match=r"mmserve\[otel\]"):
        create_app(EchoClient(), config)


def test_a_collector_gets_spans(monkeypatch):
    """What the setting names is opened with the app, and closed by whoever runs it."""
    app = create_app(EchoClient(), ServerConfig(otlp_endpoint="http://127.0.0.1:9/v1/traces"))
    assert isinstance(app.state.tracing, Tracing)
    app.state.tracing.close()


def test_a_collector_has_them_all_once_the_server_has_stopped():
    """What waited is sent, over HTTP, to the address that the setting names."""
    collected: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collected.append((self.path, body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    endpoint = f"http://127.0.0.1:{collector.server_port}/v1/traces"
    config = ServerConfig(port=0, otlp_endpoint=endpoint)
    with RunningServer(EchoClient(), config) as server:
        for path in ("/v1/models", "/livez"):
            httpx.get(server.url + path)
    collector.shutdown()
    collector.server_close()
    thread.join()
    assert {path for path, _ in collected} == {"/v1/traces"}
    words = b"".join(gunzipped(body) for _, body in collected)
    assert b"GET /v1/models" in words
    assert b"GET /livez" in words


def gunzipped(body: bytes) -> bytes:
    """The body as it was before it was compressed, if it was."""
    return gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body


@pytest.mark.parametrize("endpoint", ["", "localhost:4317", "http://me:secret@host/v1/traces"])
def test_what_is_no_collector_is_refused(endpoint: str):
    """A password in it would be told by /server_info."""
    with pytest.raises(BadRequest) as refused:
        ServerConfig(otlp_endpoint=endpoint)
    assert refused.value.param == "otlp_endpoint"
    assert "secret" not in str(refused.value)
