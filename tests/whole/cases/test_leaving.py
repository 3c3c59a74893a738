"""Clients that go away, and what is counted of those who stay and those who leave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from support.checkpoints import tiny_llava
from support.live import CHAT, ENDLESS, Ghost, Live, live, picture, strict_series
from support.oracle import image_part

from mmserve.core import SchedConfig

STORY = "Tell me a story."
ROUTES: dict[str, Callable[[int], dict[str, Any]]] = {
    CHAT: lambda n: {"messages": [{"role": "user", "content": STORY}], "n": n, **_LONG},
    "/v1/completions": lambda n: {"prompt": STORY, "n": n, **_LONG},
    "/generate": lambda n: {
        "text": STORY,
        "sampling_params": {"max_new_tokens": ENDLESS, "ignore_eos": True, "n": n},
    },
}
_LONG = {"max_tokens": ENDLESS, "ignore_eos": True}


@pytest.fixture(scope="module")
def site() -> Iterator[Live]:
    """A server that runs four sequences at once, with room for very long answers."""
    sched = SchedConfig(max_running=4)
    with live(tiny_llava(context=8000), num_slots=40_000, sched=sched) as site:
        yield site


def test_streams_whose_readers_leave_end(site: Live) -> None:
    """O-SCH-01: twenty streams, left after the first chunk, leave nothing behind.

    What the last request costs is told in steps, so that no clock decides how fast it was.
    """

    def num_steps() -> float:
        before = site.series()["steps_total"]
        assert site.chat().status_code == 200
        return site.series()["steps_total"] - before

    fresh, before = num_steps(), site.series()
    for _ in range(5):
        with ExitStack() as stack:
            for ghost in [stack.enter_context(site.ghost(STORY)) for _ in range(4)]:
                assert ghost.read()
        site.wait_idle(5)
    after = site.series()
    key = "finished_total[reason=abort]"
    assert after[key] - before[key] == 20
    assert after["generated_tokens_total"] - before["generated_tokens_total"] < 20 * 5000 / 5
    assert num_steps() == fresh


@pytest.mark.parametrize("num_samples", [1, 3])
@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("route", ROUTES)
def test_requests_nobody_waits_for_end(
    site: Live, route: str, stream: bool, num_samples: int
) -> None:
    """O-SCH-02: on every route, running or waiting, in several samples or one."""
    before = site.series()
    body = {**ROUTES[route](num_samples), "stream": stream}
    with ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(Ghost(site.url, route, body))
        site.wait_for(running=4, waiting=6 * num_samples - 4)
    site.wait_idle(5)
    after = site.series()
    key = "finished_total[reason=abort]"
    assert after[key] - before[key] == 6 * num_samples
    num_generated = after["generated_tokens_total"] - before["generated_tokens_total"]
    assert num_generated < 4 * ENDLESS / 5


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_those_who_leave_the_queue_never_run(site: Live, stream: bool) -> None:
    """O-SCH-02: waiting requests are dropped without a token or a picture computed."""
    with ExitStack() as stack:
        for ghost in [stack.enter_context(site.ghost(STORY)) for _ in range(4)]:
            assert ghost.read()
        before = site.series()
        seen = [{"role": "user", "content": [image_part(picture(1))]}]
        name = f"leaves the queue, {stream}"
        with (
            site.ghost("Three of it.", stream=stream, user=name, n=3),
            site.ghost(stream=stream, user=name, messages=seen),
        ):
            site.wait_for(running=4, waiting=4)
        site.wait_for(5, running=4, waiting=0)
        after = site.series()
    names = ("prompt_tokens_computed_total", "encoded_items_total")
    assert [after[key] - before[key] for key in names] == [0, 0]
    assert after.get(f"client_started_total[client={name}]", 0) == 0
    site.wait_idle(5)


def test_places_of_those_who_left_are_taken(site: Live) -> None:
    """O-SCH-02: whoever waits behind a ghost starts when it leaves."""
    with ExitStack() as stack:
        ghosts = [stack.enter_context(site.ghost(STORY)) for _ in range(4)]
        assert all(ghost.read() for ghost in ghosts)
        next_one = stack.enter_context(site.ghost("And me?"))
        site.wait_for(running=4, waiting=1)
        ghosts[2].leave()
        assert b"200 OK" in next_one.read()
        site.wait_for(running=4, waiting=0)
    site.wait_idle(5)


@pytest.mark.parametrize("is_waiting", [False, True], ids=["running", "waiting"])
def test_requests_are_aborted_by_id(site: Live, is_waiting: bool) -> None:
    """The caller hears the end it asked for; others, and ids of nobody, are left alone."""
    answers: dict[str, Any] = {}

    def ask(rid: str) -> None:
        answers[rid] = site.chat(STORY, max_tokens=ENDLESS, rid=rid, n=4).json()

    threads = [threading.Thread(target=ask, args=("first",))]
    threads += [threading.Thread(target=ask, args=("second",))] if is_waiting else []
    for number, thread in enumerate(threads):
        thread.start()
        site.wait_for(running=4, waiting=4 * number)
    for rid in ("nobody", "firs", "first "):
        assert site.post("/abort_request", rid=rid).status_code == 200
    for rid in ("second", "first") if is_waiting else ("first",):
        assert rid not in answers
        assert site.post("/abort_request", rid=rid).status_code == 200
        threads.pop().join(10)
        assert [c["finish_reason"] for c in answers[rid]["choices"]] == ["abort"] * 4
        lengths = [c["message"]["content"] for c in answers[rid]["choices"]]
        assert any(lengths) != (rid == "second")
    site.wait_idle(5)


def test_all_requests_are_aborted(site: Live) -> None:
    """One word ends those that run and that wait; those that come later are served."""
    with ExitStack() as stack:
        ghosts = [stack.enter_context(site.ghost(STORY)) for _ in range(7)]
        site.wait_for(running=4, waiting=3)
        assert site.post("/abort_request", abort_all=True).status_code == 200
        site.wait_idle(5)
        for ghost in ghosts:
            read = b""
            while b"data: [DONE]" not in read:
                piece = ghost.read()
                assert piece
                read += piece
            assert b'"finish_reason":"abort"' in read
    assert site.chat().status_code == 200


def test_a_cache_in_use_is_not_flushed(site: Live) -> None:
    """A flush while somebody is answered is refused, harms nobody, and works afterwards."""
    want = site.chat(STORY, max_tokens=60).json()["choices"]
    with site.ghost(STORY) as ghost:
        assert ghost.read()
        refused = site.http.post("/flush_cache")
        assert refused.status_code == 400
        assert set(refused.json()["error"]) == {"message", "type", "param", "code"}
        assert site.http.post("/flush_cache", params={"timeout": 0.1}).status_code == 400
        assert site.chat(STORY, max_tokens=60).json()["choices"] == want
        assert ghost.read()
    assert site.http.post("/flush_cache", params={"timeout": 20}).status_code == 200
    found = site.series()
    assert (found["slots_free"], found["slots_cached"]) == (found["slots"], 0)
    assert site.chat(STORY, max_tokens=60).json()["choices"] == want


class Scrapes:
    """Reads the metrics page again and again."""

    def __init__(self, site: Live) -> None:
        self._site = site
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.pages: list[str] = []

    def __enter__(self) -> Scrapes:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(0.01):
            self.pages.append(self._site.http.get("/metrics").text)

    def check(self) -> None:
        """Fail if a page is not strict, a counter falls, or slots do not add up."""
        latest: dict[str, float] = {}
        for page in self.pages:
            found = strict_series(page)
            totals = {k: v for k, v in found.items() if k.split("[")[0].endswith("_total")}
            assert [k for k, v in latest.items() if totals.get(k, 0) < v] == []
            latest = totals
            parts = ("slots_free", "slots_cached", "slots_held")
            assert sum(found[part] for part in parts) == found["slots"]


def test_ends_are_counted_by_reason(site: Live) -> None:
    """O-SCH-05: three stops, two lengths, two who left and a refusal are counted as such."""
    text = site.chat(STORY, max_tokens=40).json()["choices"][0]["message"]["content"]
    before = site.series()
    with Scrapes(site) as scrapes:
        for _ in range(3):
            stopped = site.chat(STORY, max_tokens=40, stop=[text[:9]]).json()
            assert stopped["choices"][0]["finish_reason"] == "stop"
        for _ in range(2):
            assert site.chat(STORY).json()["choices"][0]["finish_reason"] == "length"
        with site.ghost(STORY) as ghost:
            assert ghost.read()
        site.wait_idle(5)
        with site.ghost(STORY, stream=False):
            site.wait_for(running=1)
        refused = site.chat("too long " * 8000)
        assert refused.json()["error"]["code"] == "context_too_long"
        assert refused.status_code == 400
        site.wait_idle(5)
    assert scrapes.pages
    scrapes.check()
    after = site.series()
    names = [f"finished_total[reason={r}]" for r in ("stop", "length", "abort", "error")]
    names += [k for k in after if k.startswith("request_errors_total")]
    rises = {k: after[k] - before.get(k, 0) for k in names}
    assert {k: v for k, v in rises.items() if v} == {
        "finished_total[reason=stop]": 3,
        "finished_total[reason=length]": 2,
        "finished_total[reason=abort]": 2,
        "request_errors_total[code=context_too_long]": 1,
    }


def test_totals_agree_with_what_callers_hear(site: Live) -> None:
    """O-SCH-05: tokens of answers, samples and batches sum up to those of the page."""
    before = site.series()
    usages = [site.chat(STORY, n=n).json()["usage"] for n in (1, 3)]
    body = {"text": ["a", "bc"], "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
    metas = [answer["meta_info"] for answer in site.post("/generate", **body).json()]
    after = site.series()

    def rise(key: str) -> float:
        return after[key] - before.get(key, 0)

    completion = sum(told["completion_tokens"] for told in (*usages, *metas))
    assert rise("generated_tokens_total") == completion == 8 + 3 * 8 + 2 * 5
    assert rise("finished_total[reason=length]") == 1 + 3 + 2
    assert rise("client_started_total[client=]") == 1 + 3 + 2
    outcomes = [k for k in after if k.startswith("prompt_tokens_total")]
    prompt = usages[0]["prompt_tokens"] + 3 * usages[1]["prompt_tokens"]
    assert sum(map(rise, outcomes)) == prompt + sum(told["prompt_tokens"] for told in metas)
