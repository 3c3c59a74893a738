"""What goes wrong around one request stays with it; nobody hangs."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Iterator

import pytest
from support.checkpoints import tiny_llava
from whole.engine.test_engine import GREEDY, ask, picture

from mmserve.core import (
    BadRequest,
    Broken,
    Busy,
    EngineConfig,
    ForwardPlan,
    MmserveError,
    Pending,
    Request,
    SamplingParams,
    SchedConfig,
    TextPart,
)
from mmserve.engine import Engine, collect
from mmserve.engine.ticket import EngineTicket

LONG = SamplingParams(max_new_tokens=400, temperature=0.0, ignore_eos=True)


@pytest.fixture
def small() -> Iterator[Engine]:
    """An engine of its own in which only two sequences may wait."""
    config = EngineConfig(
        model=str(tiny_llava()),
        num_slots=1024,
        threads=1,
        verify_steps=True,
        sched=SchedConfig(max_waiting=2),
    )
    with Engine.from_config(config) as engine:
        yield engine


def test_no_answers_asked_for_is_a_refusal(engine: Engine) -> None:
    """N = 0 is refused, and its readers hear of it."""
    ticket = ask(engine, TextPart("x"), sampling=SamplingParams(n=0))
    with pytest.raises(BadRequest, match="n is 0"):
        ticket.report(timeout_s=30)
    with pytest.raises(BadRequest, match="n is 0"):
        list(ticket.outputs())


def test_a_call_of_which_some_branches_find_no_room_leaves_nothing(small: Engine) -> None:
    """It is refused as busy, and its picture can be asked about afterwards."""
    three = dataclasses.replace(GREEDY, n=3)
    with pytest.raises(Busy):
        collect(ask(small, picture(7), TextPart("q"), sampling=three).outputs())
    reader = threading.Thread(
        target=lambda: collect(ask(small, picture(7), TextPart("q")).outputs()), daemon=True
    )
    reader.start()
    reader.join(timeout=20)
    assert not reader.is_alive()


def test_a_request_that_cannot_be_scheduled_harms_nobody(
    small: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody foresaw is logged and ends one request only."""
    good = ask(small, TextPart("good"), sampling=LONG)
    good.report(timeout_s=30)
    add = small._parts.scheduler.add

    def fail(spec) -> None:
        if spec.client == "bad":
            raise RuntimeError("unforeseen")
        add(spec)

    monkeypatch.setattr(small._parts.scheduler, "add", fail)
    bad = Request(request_id="b", parts=(TextPart("x"),), sampling=GREEDY, client="bad")
    with caplog.at_level(logging.CRITICAL), pytest.raises(Broken):
        list(small.submit(bad).outputs())
    assert collect(good.outputs()).finishes[0].reason == "length"


def test_work_that_fails_between_steps_is_its_callers(small: Engine) -> None:
    """Any exception comes back to who called; the loop goes on."""
    future = small._loop.call(lambda: {}["nothing"])
    with pytest.raises(KeyError):
        future.result(timeout=10)
    assert collect(ask(small, TextPart("x")).outputs()).finishes[0].reason == "length"


def test_work_after_the_end_is_answered_at_once(
    small: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is put where nobody looks any more, even while the thread is still alive."""
    small.close()
    monkeypatch.setattr(small._loop._thread, "is_alive", lambda: True)
    with pytest.raises(MmserveError, match="closed"):
        small._loop.call(lambda: 1).result(timeout=5)
    ticket = EngineTicket("late", 1, small._loop.cancel)
    small._loop.submit(None, ticket)
    with pytest.raises(MmserveError, match="closed"):
        ticket.report(timeout_s=5)


def test_a_request_amid_closing_is_refused_by_its_ticket(small: Engine) -> None:
    """`submit` never raises, also when the workers are already gone."""
    small._text_pool.shutdown()
    with pytest.raises(Broken, match="closed"):
        ask(small, TextPart("x")).report(timeout_s=5)


def test_a_reader_whose_event_loop_is_gone_harms_nobody(small: Engine) -> None:
    """An event loop closed with a reader still waiting does not end the engine."""
    ticket = ask(small, TextPart("x"), sampling=LONG)
    ticket.report(timeout_s=30)
    gone = asyncio.new_event_loop()
    gone.close()
    ticket._wakers.append((gone, asyncio.Event()))
    assert collect(ticket.outputs()).finishes[0].reason == "length"
    assert small.counters()["running"] == 0


def test_a_stream_that_is_left_is_cancelled(small: Engine) -> None:
    """Closing the iterator of a plain call ends its answer."""
    news = small.generate("x", sampling_params=LONG, stream=True)
    next(news)
    news.close()
    assert small.flush_cache(timeout_s=30)
    assert small.counters()['finished_total{reason="abort"}'] == 1


def test_closing_tells_what_was_done(small: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last output of an answer cut by `close` has its counts and times."""
    loop = small._loop
    plain, steps = loop._runner.launch, itertools.count()

    def launch(plan: ForwardPlan, begun=None) -> Pending:
        while next(steps) > 8 and loop._inbox.empty():  # from then on, wait for `close`
            time.sleep(0.001)
        return plain(plan, begun)

    monkeypatch.setattr(loop._runner, "launch", launch)
    ticket = ask(small, TextPart("x"), sampling=LONG)
    news = ticket.outputs()
    seen = [next(news) for _ in range(3)]
    small.close()
    seen += news
    assert seen[-1].finish.reason == "abort"
    assert seen[-1].usage.completion_tokens == sum(len(output.token_ids) for output in seen)
    assert seen[-1].timing.total > 0


def test_branches_share_the_time_of_their_picture(small: Engine) -> None:
    """Decoding a picture once is told as once, whatever n is."""
    spent: list[float] = []
    take = small._loop._take_pixels

    def note(pixels) -> None:
        spent.append(pixels.decode_ms)
        take(pixels)

    small._loop._take_pixels = note
    two = dataclasses.replace(GREEDY, n=2)
    answer = collect(ask(small, picture(8), TextPart("q"), sampling=two).outputs())
    assert [timing.decode for timing in answer.timings] == spent * 2
