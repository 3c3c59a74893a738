"""The server load's own arithmetic: it must see what it says it checks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.serve_asks import Ask, Shown, draw_asks, swap_seen_share
from benchmarks.serve_calls import CHAT, Ended, play_closed
from benchmarks.serve_load import check_counts, grown_share
from mmserve.core import series_key

_WORD = {"choices": [{"delta": {"content": "hi"}, "finish_reason": None}]}
_END = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
_ERROR = {"error": {"message": "broken"}}
_STREAMS: dict[str, list[object]] = {
    "good": [_WORD, _END, "[DONE]"],
    "no end": [_WORD, "[DONE]"],
    "two ends": [_WORD, _END, _END, "[DONE]"],
    "not done": [_WORD, _END],
    "more": [_WORD, _END, "[DONE]", _WORD],
    "error": [_WORD, _ERROR, "[DONE]"],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server that says what the body names; anything else is refused."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            events = _STREAMS.get(body["say"])
            kind = "application/json" if events is None else "text/event-stream"
            said = json.dumps(_ERROR)
            if events is not None:
                said = "".join(
                    f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n"
                    for one in events
                )
            self.send_response(400 if events is None else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said.encode())

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("say", _STREAMS)
def test_only_a_stream_that_ends_once_is_clean(url: str, say: str) -> None:
    """Lost, doubled and broken ends are seen, and so are words after the end."""
    (ended,) = play_closed(url, [Ask("answered", {"say": say})], 1)
    assert ended.is_clean == (say == "good")
    assert ended.text.startswith("hi")


def test_a_refusal_is_right_for_a_wrong_call_alone(url: str) -> None:
    """The same 400 is a lost answer where an answer was due."""
    asks = [Ask("refused", {"say": ""}), Ask("answered", {"say": ""})]
    assert [one.is_clean for one in play_closed(url, asks, 2)] == [True, False]


def test_who_leaves_does_so_before_the_end(url: str) -> None:
    """A call that was left has words and no end."""
    (ended,) = play_closed(url, [Ask("left", {"say": "good"})], 1)
    assert (ended.is_clean, ended.num_ends) == (True, 0)


def test_odd_kinds_have_exactly_their_shares() -> None:
    """And every call asks something of the pool."""
    shown = [Shown(f"p{k}", "what?", "x", f"said {k}") for k in range(5)]
    asks = draw_asks(shown, 200, left_share=0.05, refused_share=0.02, seed=1)
    kinds = [ask.kind for ask in asks]
    assert [kinds.count(kind) for kind in ("left", "refused", "answered")] == [10, 4, 186]
    assert {ask.expected for ask in asks if ask.kind == "answered"} == {
        f"said {k}" for k in range(5)
    }


def test_counts_that_differ_are_told_by_series() -> None:
    """Differences of the server's counts are compared, not the counts themselves."""
    ended = [
        Ended(Ask("answered", {}), 200, reasons=["stop"]),
        Ended(Ask("left", {}), 200),
        Ended(Ask("refused", {}), 400),
    ]
    stops = series_key("finished_total", reason="stop")
    served = series_key("http_requests_total", route=CHAT, status="200")
    refused = series_key("http_requests_total", route=CHAT, status="400")
    aborts = series_key("finished_total", reason="abort")
    before = {stops: 7.0, served: 9.0}
    after = {stops: 8.0, served: 11.0, refused: 1.0, aborts: 1.0}
    assert set(check_counts(before, after, ended).values()) == {0.0}
    after[stops] += 1
    assert check_counts(before, after, ended)[stops] == 1


def test_growth_is_from_a_quarter_to_the_end() -> None:
    """What is taken before the first quarter does not count."""
    samples = [(share / 100, 50.0 if share < 20 else 100.0) for share in range(90)]
    samples += [(share / 100, 110.0) for share in range(90, 101)]
    assert grown_share(samples) == pytest.approx(0.1)


def test_answers_that_are_all_alike_show_no_swap() -> None:
    """Half and half shows every second one."""
    assert (swap_seen_share(["a", "a"]), swap_seen_share(["a", "b"])) == (0, 0.5)
