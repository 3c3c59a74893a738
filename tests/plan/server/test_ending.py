"""How a server ends: by a signal, by two, or because its engine is given up."""

from __future__ import annotations

import signal
import threading

import httpx
import pytest
from support.echo_client import EchoClient

from mmserve.core import EngineDown, ServerConfig
from mmserve.server import RunningServer, serve


def served(
    client: EchoClient, drain_s: float = 3600.0, **hooks: object
) -> list[httpx.Response]:
    """Serve in this thread; a stream begins, then `hooks["act"]` is called with its client."""
    act = hooks.pop("act", None)
    answers: list[httpx.Response] = []

    def ask(url: str) -> None:
        transport = httpx.HTTPTransport(retries=9)
        with httpx.Client(
            base_url=url, trust_env=False, timeout=60, transport=transport
        ) as http:
            body = {"prompt": "long", "stream": True, "max_tokens": 4000}
            with http.stream("POST", "/v1/completions", json=body) as response:
                lines = response.iter_lines()
                next(lines)
                if callable(act):
                    act(http)
                answers.append(httpx.Response(200, text="\n".join(lines)))

    threads = []

    def on_ready(url: str) -> None:
        threads.append(threading.Thread(target=ask, args=(url,)))
        threads[0].start()

    serve(client, ServerConfig(port=0, drain_s=drain_s), on_ready, **hooks)  # type: ignore[arg-type]
    threads[0].join()
    return answers


def test_a_signal_refuses_new_requests_and_lets_others_end() -> None:
    """While a stream goes on, new calls and the health route are 503; then the server ends."""
    seen: list[httpx.Response] = []

    def act(http: httpx.Client) -> None:
        signal.raise_signal(signal.SIGTERM)
        while http.get("/health").status_code != 503:
            threading.Event().wait(0.01)
        seen.append(http.post("/v1/completions", json={"prompt": "x"}))
        seen.append(http.get("/health_generate"))
        seen.append(http.get("/livez"))

    client = EchoClient(pace_s=0.002, answers={"long": "x" * 1500})
    (answer,) = served(client, act=act)
    assert [response.status_code for response in seen] == [503, 503, 200]
    assert seen[0].json()["error"]["code"] == "shutting_down"
    assert "Retry-After" in seen[0].headers
    assert answer.text.count('"text":"x"') == 1499
    assert answer.text.rstrip().endswith("data: [DONE]")


def test_when_the_time_is_up_streams_are_told() -> None:
    """A stream that outlasts the drain gets an error event."""
    client = EchoClient(pace_s=0.05, answers={"long": "x" * 3000})
    (answer,) = served(client, 0.0, act=lambda http: signal.raise_signal(signal.SIGTERM))
    assert '"code":"shutting_down"' in answer.text


def test_a_second_signal_ends_at_once_and_is_told() -> None:
    """Whoever holds the engine hears of it, and streams get an error event."""
    told = threading.Event()

    def act(http: httpx.Client) -> None:
        signal.raise_signal(signal.SIGTERM)
        while http.get("/health").status_code != 503:
            threading.Event().wait(0.01)
        signal.raise_signal(signal.SIGTERM)

    client = EchoClient(pace_s=0.05, answers={"long": "x" * 3000})
    (answer,) = served(client, act=act, on_forced=told.set)
    assert told.is_set()
    assert '"code":"shutting_down"' in answer.text


def test_ctrl_c_is_raised_when_all_is_over() -> None:
    """SIGINT drains like SIGTERM, then interrupts whoever serves."""
    client = EchoClient(pace_s=0.002, answers={"long": "x" * 100})
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            served(client, act=lambda http: signal.raise_signal(signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def test_it_ends_when_the_engine_is_given_up() -> None:
    """`is_over` ends the server without a signal."""
    asked = []
    serve(EchoClient(), ServerConfig(port=0), is_over=lambda: bool(asked.append(1)) or True)
    assert asked


def test_health_is_false_while_the_engine_is_down() -> None:
    """A client that says that its engine is down makes readiness 503, metrics and livez not."""

    class Down(EchoClient):
        def counters(self) -> dict[str, float]:
            return {"engine_up": 0.0, "engine_restarts_total": 2.0}

    with RunningServer(Down()) as server, httpx.Client(base_url=server.url) as http:
        health = http.get("/health")
        assert (health.status_code, health.json()["error"]["code"]) == (503, EngineDown.code)
        assert http.get("/livez").status_code == 200
        assert "mmserve_engine_restarts_total 2.0" in http.get("/metrics").text
        assert "mmserve_engine_up 0.0" in http.get("/metrics").text
