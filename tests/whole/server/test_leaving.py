"""Clients that leave: their work ends within a second, and the counters say so."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from mmserve.core import EngineConfig, SchedConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer

CONTEXT = 8000


@pytest.fixture(scope="module")
def narrow() -> Iterator[str]:
    """A server that runs four sequences at once, with room for long answers."""
    from support.checkpoints import tiny_llava  # noqa: PLC0415

    config = EngineConfig(
        model=str(tiny_llava(context=CONTEXT)),
        num_slots=40_000,
        threads=1,
        sched=SchedConfig(max_running=4),
    )
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        yield server.url


def body(limit: int, **fields: object) -> dict:
    """A question whose answer has exactly `limit` tokens."""
    messages = [{"role": "user", "content": "Tell me a story."}]
    asked = {"messages": messages, "max_tokens": limit, "ignore_eos": True, "temperature": 0}
    return {**asked, **fields}


def connect(url: str, asked: dict) -> socket.socket:
    """A connection on which the request was sent."""
    address = urlsplit(url)
    raw = json.dumps(asked).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    )
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(head.encode() + raw)
    return connection


def counters(url: str) -> dict[str, float]:
    """The engine's counters and gauges."""
    return httpx.get(f"{url}/server_info").json()["counters"]


def wait_until(is_true: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Fail if it is not so within the limit."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() - start < limit_s
        time.sleep(0.01)


def is_idle(url: str) -> bool:
    """Whether nothing runs or waits."""
    found = counters(url)
    return found["running"] == found["waiting"] == 0


def test_left_streams_end(narrow: str) -> None:
    """Twenty streams left after the first chunk: idle soon after, little was generated."""
    before = counters(narrow)["generated_tokens_total"]
    for _ in range(5):
        ghosts = [connect(narrow, body(5000, stream=True)) for _ in range(4)]
        for ghost in ghosts:
            assert ghost.recv(16)
        for ghost in ghosts:
            ghost.close()
        wait_until(lambda: is_idle(narrow))
    assert counters(narrow)["generated_tokens_total"] - before < 20 * 5000 / 4
    assert httpx.post(f"{narrow}/v1/chat/completions", json=body(4)).status_code == 200


@pytest.mark.parametrize("samples", [1, 3])
def test_left_plain_requests_end(narrow: str, samples: int) -> None:
    """Running or waiting, whole answers nobody waits for are dropped."""
    ghosts = [connect(narrow, body(5000, n=samples)) for _ in range(6)]
    wait_until(lambda: counters(narrow)["running"] == 4)
    time.sleep(0.2)
    for ghost in ghosts:
        ghost.close()
    wait_until(lambda: is_idle(narrow))


def series(url: str) -> dict[str, float]:
    """Every series of the metrics route, by name and labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    found: dict[str, float] = {}
    for family in families:
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            key = f"{sample.name}[{labels}]"
            assert key not in found
            found[key] = sample.value
    return found


def test_ends_are_counted_by_reason(narrow: str) -> None:
    """Three stops, two lengths, two aborts and a refusal raise their counters by as much."""
    route = f"{narrow}/v1/chat/completions"
    text = httpx.post(route, json=body(40)).json()["choices"][0]["message"]["content"]
    before = series(narrow)
    for _ in range(3):
        assert httpx.post(route, json=body(40, stop=[text[:9]])).status_code == 200
    for _ in range(2):
        assert httpx.post(route, json=body(3)).status_code == 200
    for _ in range(2):
        with connect(narrow, body(5000, stream=True)) as ghost:
            assert ghost.recv(16)
    assert httpx.post(route, json=body(-1)).status_code == 400
    wait_until(lambda: is_idle(narrow))
    after = series(narrow)

    def rise(key: str) -> float:
        return after[key] - before.get(key, 0)

    assert rise("mmserve_finished_total[reason=stop]") == 3
    assert rise("mmserve_finished_total[reason=length]") == 2
    assert rise("mmserve_finished_total[reason=abort]") == 2
    assert rise("mmserve_request_errors_total[code=bad_request]") == 1
    falls = [k for k in before if k.split("[")[0].endswith("_total") and rise(k) < 0]
    assert falls == []


def test_a_server_that_stops_says_so_to_those_it_still_answers() -> None:
    """A plain request ends with 503 and its reason, a stream with that error as an event."""
    from support.checkpoints import tiny_llava  # noqa: PLC0415

    engine = Engine(model=str(tiny_llava(context=CONTEXT)), num_slots=40_000, threads=1)
    with engine, ThreadPoolExecutor() as pool:
        with RunningServer(engine, ServerConfig(port=0)) as server:
            route = f"{server.url}/v1/chat/completions"
            plain, stream = (
                pool.submit(httpx.post, route, json=body(5000, stream=is_stream), timeout=20)
                for is_stream in (False, True)
            )
            wait_until(lambda: engine.counters()["generated_tokens_total"] > 20)
            start = time.monotonic()
        assert time.monotonic() - start < 10
        answer, events = plain.result(), stream.result().text
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "shutting_down"
    assert '"code":"shutting_down"' in events
