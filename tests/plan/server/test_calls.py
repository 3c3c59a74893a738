"""Requests under way: ids, aborts, and clients that leave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest
from support.site import events_of

LONG = "long " * 200


def wait_until(is_true: Callable[[], bool]) -> None:
    """Return when it is so; fail after twenty seconds."""
    start = time.monotonic()
    while not is_true():
        assert time.monotonic() - start < 20
        time.sleep(0.005)


def leave_early(site, path: str, body: bytes, *, after_bytes: bool) -> None:
    """Send a request and close the socket, after the first byte of the answer or at once."""
    address = urlsplit(site.url)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head.encode() + body)
        if after_bytes:
            assert connection.recv(100)
        else:
            wait_until(lambda: bool(site.client.tickets))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", '{"text": "%s", "stream": %s}'),
        ("/v1/completions", '{"prompt": "%s", "max_tokens": 1000, "n": 3, "stream": %s}'),
        (
            "/v1/chat/completions",
            '{"messages": [{"role": "user", "content": "%s"}], "stream": %s}',
        ),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_ends_its_request(
    site, path: str, body: str, is_stream: bool
) -> None:
    """Streaming or not, the ticket is cancelled within a second."""
    site.client.pace_s = 0.02
    raw = (body % (LONG, str(is_stream).lower())).encode()
    leave_early(site, path, raw, after_bytes=is_stream)
    wait_until(lambda: site.client.tickets[0].is_cancelled)


def test_a_client_that_leaves_a_batch_ends_all_of_it(site) -> None:
    """No prompt of it goes on."""
    site.client.pace_s = 0.02
    body = b'{"text": ["%s", "%s", "x"]}' % (LONG.encode(), LONG.encode())
    leave_early(site, "/generate", body, after_bytes=False)
    wait_until(lambda: len(site.client.tickets) == 3)
    wait_until(lambda: not any(t.is_running for t in site.client.tickets))


def test_a_client_that_leaves_while_waiting_is_heard(site) -> None:
    """Also before the request is accepted."""
    site.client.pace_s = 1.5
    leave_early(site, "/generate", b'{"text": "x"}', after_bytes=False)
    wait_until(lambda: site.client.tickets[0].is_cancelled)


def test_a_reader_that_stays_gets_everything(site) -> None:
    """Slow answers are not taken for left ones."""
    site.client.pace_s = 0.01
    assert site.chat("patience").json()["choices"][0]["message"]["content"] == "patience"
    assert not site.client.tickets[0].is_cancelled


def test_ids_are_shown_and_unique_inside(site) -> None:
    """Header and body give the id shown; two live requests may share it."""
    site.client.pace_s = 0.005
    headers = {"X-Request-Id": "dup"}

    def ask(text: str) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": text}]}
        return httpx.post(f"{site.url}/v1/chat/completions", json=body, headers=headers)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(ask, ["one " * 9, "two " * 9])
    assert first.json()["choices"][0]["message"]["content"] == "one " * 9
    assert second.json()["choices"][0]["message"]["content"] == "two " * 9
    assert first.json()["id"] == second.json()["id"] == first.headers["X-Request-Id"] == "dup"
    assert len({request.request_id for request in site.client.requests}) == 2
    assert site.client.counters()["running"] == 0
    assert site.chat("x", rid="mine").json()["id"] == "mine"


def test_ids_must_fit_a_header(site) -> None:
    """Spaces, other characters and long ones are refused."""
    for rid in ("a b", "é", "x" * 200, "a\r\nb"):
        assert site.refused(site.chat("x", rid=rid))["param"] == "rid"


@pytest.mark.parametrize("how", [{"rid": "victim"}, {"abort_all": True}])
@pytest.mark.parametrize("is_stream", [False, True])
def test_aborted_calls_end_with_what_they_have(site, how: dict, is_stream: bool) -> None:
    """200, the text so far, type abort."""
    site.client.pace_s = 0.01
    answers: list[httpx.Response] = []
    body = {"text": LONG, "rid": "victim", "stream": is_stream}
    thread = threading.Thread(
        target=lambda: answers.append(httpx.post(f"{site.url}/generate", json=body))
    )
    thread.start()
    wait_until(lambda: bool(site.client.tickets))
    time.sleep(0.1)
    assert site.post("/abort_request", **how).content == b""
    thread.join()
    answer = events_of(answers[0])[-2] if is_stream else answers[0].json()
    assert answers[0].status_code == 200
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert LONG.startswith(answer["text"])
    assert 0 < len(answer["text"]) < len(LONG)


def test_aborts_need_the_whole_id(site) -> None:
    """A beginning of an id, and one that is not there, abort nothing and are no error."""
    site.client.pace_s = 0.01
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(
            httpx.post, f"{site.url}/generate", json={"text": "abcdef", "rid": "victim"}
        )
        wait_until(lambda: bool(site.client.tickets))
        for rid in ("vic", "victim_0", "other"):
            assert site.post("/abort_request", rid=rid).status_code == 200
        assert answer.result().json()["text"] == "abcdef"


def test_finished_calls_are_forgotten(site) -> None:
    """An abort of all after the end reaches nobody."""
    site.post("/generate", text="x")
    site.post("/abort_request", abort_all=True)
    assert not site.client.tickets[0].is_cancelled
