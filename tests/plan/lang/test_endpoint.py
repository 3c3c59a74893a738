"""RuntimeEndpoint against a scripted server: streams, scores, errors, aborts, silence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import mmserve.lang as sgl
from mmserve.core import (
    Aborted,
    BackendFailed,
    Busy,
    CallTimeout,
    ContextTooLong,
    UnsupportedByBackend,
)

Reply = tuple[int, object] | list[object]


class Script:
    """Answers each POST by a rule, and remembers the bodies. A list is a stream of events."""

    def __init__(self) -> None:
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.rule: Callable[[str, dict[str, Any]], Reply] = lambda path, body: (200, {})
        self.delay_s = 0.0
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                script.bodies.append((self.path, body))
                script.headers.append(dict(self.headers))
                reply = script.rule(self.path, body)
                if isinstance(reply, list):
                    self.stream(reply)
                else:
                    self.whole(*reply)

            def whole(self, status: int, body: object) -> None:
                content = json.dumps(body, ensure_ascii=False).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Retry-After", "2")
                self.end_headers()
                self.wfile.write(content)

            def stream(self, items: list[object]) -> None:
                self.send_response(200)
                self.send_header("Connection", "close")
                self.end_headers()
                try:
                    for item in items:
                        text = (
                            item
                            if isinstance(item, str)
                            else json.dumps(item, ensure_ascii=False)
                        )
                        self.wfile.write(f"data: {text}\n\n".encode())
                        self.wfile.flush()
                        time.sleep(script.delay_s)
                except OSError:
                    pass
                self.close_connection = True

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def script() -> Iterator[Script]:
    """A scripted server."""
    server = Script()
    yield server
    server.close()


@pytest.fixture
def endpoint(script: Script) -> Iterator[sgl.RuntimeEndpoint]:
    """The endpoint of the scripted server."""
    backend = sgl.RuntimeEndpoint(script.url, api_key="k")
    yield backend
    backend.close()


def event(text: str, reason: object = None, **more: object) -> dict[str, object]:
    """One piece of an answer."""
    meta = {"finish_reason": reason, "prompt_tokens": 3, "completion_tokens": 1}
    return {"text": text, "output_ids": [1], "meta_info": meta, **more}


STOP = {"type": "stop", "matched": None}


@sgl.function
def ask(s):
    """One question, one answer."""
    s += sgl.user("Q") + sgl.assistant(sgl.gen("x", max_tokens=8))


def test_increments_join_to_the_answer(script, endpoint):
    """Line separators inside texts do not break events."""
    script.rule = lambda path, body: [event("a\u2028"), event("b", STOP), "[DONE]"]
    state = ask.run(backend=endpoint)

    assert state["x"] == "a\u2028b"
    assert script.bodies[0][1]["parts"][0] == {
        "role": "user",
        "parts": [{"text": "Q"}],
        "open": False,
    }
    assert script.headers[0]["Authorization"] == "Bearer k"


def test_several_answers_come_by_their_index(script, endpoint):
    """N = 2, interleaved."""

    @sgl.function
    def two(s):
        s += "Q" + sgl.gen("x", n=2)

    script.rule = lambda path, body: [
        event("a", index=0),
        event("b", STOP, index=1),
        event("c", STOP, index=0),
        "[DONE]",
    ]

    assert two.run(backend=endpoint)["x"] == ["ac", "b"]


def test_a_select_is_one_request_with_choices(script, endpoint):
    """The server scores the options; the rule picks."""

    @sgl.function
    def choose(s):
        s += sgl.user("Q") + sgl.assistant(sgl.select("c", ["yes", "no"]))

    options = [
        {"text": "yes", "token_ids": [5, 6], "logprobs": [-2.0, -3.0]},
        {"text": "no", "token_ids": [7], "logprobs": [-1.0]},
    ]
    reply = event("", {"type": "length", "length": 0})
    reply["meta_info"]["choices"] = options
    script.rule = lambda path, body: (200, reply)
    state = choose.run(backend=endpoint)

    assert state["c"] == "no"
    assert state.get_meta_info("c")["normalized_prompt_logprobs"] == [-2.5, -1.0]
    assert [body["choices"] for _, body in script.bodies] == [["yes", "no"]]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (500, None, BackendFailed),
        (400, "context_too_long", ContextTooLong),
        (503, "busy", Busy),
    ],
)
def test_a_refusal_is_raised_at_reading(script, endpoint, status, code, expected):
    """Typed, with the server's message."""
    script.rule = lambda path, body: (status, {"error": {"message": "why", "code": code}})
    with pytest.raises(expected, match="why") as caught:
        ask.run(backend=endpoint)["x"]

    assert caught.value.fields["status"] == status
    assert caught.value.fields["retry_after_s"] == 2


def test_an_error_in_a_stream_is_raised(script, endpoint):
    """The pieces before it do not count as an answer."""
    script.rule = lambda path, body: [
        event("a"),
        {"error": {"message": "why", "code": "backend_failed"}},
        "[DONE]",
    ]
    with pytest.raises(BackendFailed, match="why"):
        ask.run(backend=endpoint)["x"]


@pytest.mark.parametrize("events", [[event("a")], [event("a"), "[DONE]"], ["no json"]])
def test_a_stream_without_an_end_is_the_backends_failure(script, endpoint, events):
    """Broken off, without a finish reason, or no JSON."""
    script.rule = lambda path, body: events
    with pytest.raises(BackendFailed):
        ask.run(backend=endpoint)["x"]


def test_a_cancelled_call_is_aborted_by_its_id(script, endpoint):
    """The reader is told at once; the server gets the id."""
    script.delay_s = 0.05
    script.rule = lambda path, body: (
        (200, {}) if path == "/abort_request" else [event("a")] * 40
    )
    state = ask.run(backend=endpoint, stream=True)
    next(state.text_iter("x"))
    state.cancel()
    with pytest.raises(Aborted):
        state["x"]
    while len(script.bodies) < 2:
        time.sleep(0.01)

    assert script.bodies[1] == ("/abort_request", {"rid": script.bodies[0][1]["rid"]})


def test_a_silent_server_is_bounded_by_the_timeout(script, endpoint):
    """timeout_s counts from submission, whatever the server does."""
    script.delay_s = 1.0
    script.rule = lambda path, body: [event("a")] * 40
    started = time.monotonic()
    with pytest.raises(CallTimeout):
        ask.run(backend=endpoint, timeout_s=0.2)["x"]

    assert time.monotonic() - started < 20


def test_a_server_that_is_not_there_fails_with_a_hint(script):
    """The message names the address."""
    backend = sgl.RuntimeEndpoint("http://127.0.0.1:9")
    with pytest.raises(BackendFailed, match=r"127\.0\.0\.1:9"):
        ask.run(backend=backend)["x"]
    backend.close()


def test_flush_tells_whether_it_worked(script, endpoint):
    """400 means that calls are under way; other errors are raised."""
    script.rule = lambda path, body: (200, {})
    assert sgl.flush_cache(endpoint) is True
    script.rule = lambda path, body: (400, {})
    assert sgl.flush_cache(endpoint) is False
    script.rule = lambda path, body: (500, {})
    with pytest.raises(BackendFailed):
        sgl.flush_cache(endpoint)


def test_a_template_name_is_refused():
    """The server uses the model's own template."""
    with pytest.raises(UnsupportedByBackend):
        sgl.RuntimeEndpoint("http://127.0.0.1:9", chat_template_name="llama-2")
