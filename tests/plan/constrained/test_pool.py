"""Compilation in a pool: once for all, bounded, and one end for each who waits."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait

import pytest
from support.gated_compiler import Gate, GatedCompiler, WordCompiler

from mmserve.constrained import CompilePool, NewMatcher
from mmserve.constrained.refusals import RecentRefusals
from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    Busy,
    Constraint,
    ConstraintRefused,
    EngineConfig,
    MmserveError,
)

LONG_S = 60.0
MakePool = Callable[..., CompilePool]


def regex(value: str) -> Constraint:
    """A constraint for the compiler of words."""
    return Constraint("regex", value)


@pytest.fixture
def compiler() -> GatedCompiler:
    """A compiler that stops where a test wants it to."""
    return GatedCompiler(WordCompiler())


@pytest.fixture
def make(compiler: GatedCompiler) -> Iterator[MakePool]:
    """Pools around the compiler, closed at the end."""
    pools: list[CompilePool] = []

    def made(*, num_workers: int = 1, timeout_s: float = LONG_S, **limits: int) -> CompilePool:
        limits = {"max_waiting": 100, "max_bytes": 1000, **limits}
        pools.append(
            CompilePool(compiler, num_workers=num_workers, timeout_s=timeout_s, **limits)
        )
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


def begin(pool: CompilePool, gate: Gate, value: str) -> None:
    """Ask for a grammar until a worker has begun it, however short the pool's patience."""
    while not gate.begun.is_set():
        waiter = pool.request(regex(value))
        gate.begun.wait(timeout=0.05)
        waiter.cancel()


def end_of(waiter: Future[NewMatcher]) -> MmserveError:
    """Why a waiter was refused."""
    error = waiter.exception(timeout=LONG_S)
    assert isinstance(error, MmserveError)
    return error


def test_a_request_returns_before_its_grammar_is_there(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """The future is open while the compiler works, and gets what it made."""
    pool = make()
    with compiler.gate("a") as gate:
        waiter = pool.request(regex("a"))
        assert gate.begun.wait(LONG_S)
        assert not waiter.done()
        assert pool.counts().num_waiting == 1
    maker = waiter.result(timeout=LONG_S)
    assert maker is compiler.cached(regex("a"))
    assert pool.counts().num_waiting == 0


def test_a_known_grammar_needs_no_worker(make: MakePool, compiler: GatedCompiler) -> None:
    """Its future is done at once, while the only worker is busy with another."""
    pool = make()
    maker = pool.request(regex("known")).result(timeout=LONG_S)
    with compiler.gate("slow") as gate:
        pool.request(regex("slow"))
        assert gate.begun.wait(LONG_S)
        again = pool.request(regex("known"))
        assert again.done()
        assert again.result() is maker
    assert compiler.num_compiled["known"] == 1


def test_equal_grammars_are_compiled_once(make: MakePool, compiler: GatedCompiler) -> None:
    """All who ask while it is under way get the one result."""
    pool = make(num_workers=4)
    with compiler.gate("a") as gate:
        waiters = [pool.request(regex("a")) for _ in range(50)]
        assert gate.begun.wait(LONG_S)
        waiters += [pool.request(regex("a")) for _ in range(50)]
    assert len({waiter.result(timeout=LONG_S) for waiter in waiters}) == 1
    assert compiler.num_compiled["a"] == 1
    assert pool.counts().num_hits == 99


def test_a_refusal_reaches_all_and_each_has_its_own(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """Same words, hint and fields, but no exception is raised in two threads."""
    pool = make()
    with compiler.gate("bad"):
        waiters = [pool.request(regex("bad")) for _ in range(3)]
    errors = [end_of(waiter) for waiter in waiters]
    assert len({id(error) for error in errors}) == 3
    assert {type(error) for error in errors} == {ConstraintRefused}
    assert {(error.message, error.hint) for error in errors} == {("no: bad", "a way out")}
    assert all(error.fields == {"field": "regex", "reason": "bad"} for error in errors)


def test_a_bad_grammar_sent_again_costs_nothing(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """It is refused at once, with an exception of its own, and not compiled again."""
    pool = make()
    first = end_of(pool.request(regex("bad")))
    again = pool.request(regex("bad"))
    assert again.done()
    assert again.exception().message == first.message
    assert again.exception() is not first
    assert compiler.num_compiled["bad"] == 1
    assert pool.counts().refused["invalid"] == 2


def test_what_takes_too_long_is_refused_and_kept_when_it_is_done(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """The refusal names the limit; the work goes on, once, and the grammar is known then."""
    pool = make(timeout_s=0.2)
    with compiler.gate("slow") as gate:
        begin(pool, gate, "slow")
        late = end_of(pool.request(regex("slow")))
        assert isinstance(late, ConstraintRefused)
        assert late.fields == {"field": "regex", "reason": "timeout", "timeout_s": 0.2}
        assert "0.2 s" in late.message
        assert late.hint
        assert isinstance(end_of(pool.request(regex("slow"))), ConstraintRefused)
        assert pool.counts().refused["timeout"] == 2
    pool.close()
    pool._workers.shutdown()
    assert compiler.num_compiled["slow"] == 1
    assert compiler.cached(regex("slow")) is not None


def test_a_grammar_that_no_worker_came_to_is_not_at_fault(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """Its request is told to try again, and it is not compiled for nobody."""
    pool = make(timeout_s=0.2)
    with compiler.gate("slow") as gate:
        begin(pool, gate, "slow")
        busy = end_of(pool.request(regex("behind")))
        assert isinstance(busy, Busy)
        assert busy.fields["retry_after_s"] > 0
        assert pool.counts().refused["busy"] == 1
    pool.close()
    pool._workers.shutdown()
    assert "behind" not in compiler.num_compiled


def test_a_full_queue_refuses_new_grammars_only(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """Known ones and those under way are for all; the limit is named."""
    pool = make(max_waiting=2)
    pool.request(regex("known")).result(timeout=LONG_S)
    with compiler.gate("slow") as gate:
        waiters = [pool.request(regex("slow"))]
        assert gate.begun.wait(LONG_S)
        waiters += [pool.request(regex(value)) for value in ("b", "c", "c", "slow", "known")]
        refused = pool.request(regex("d"))
        assert refused.done()
        assert isinstance(refused.exception(), Busy)
        assert "2 grammars" in refused.exception().message
    assert not wait(waiters, timeout=LONG_S).not_done
    assert all(waiter.exception() is None for waiter in waiters)
    assert pool.request(regex("d")).exception(timeout=LONG_S) is None


@pytest.mark.parametrize(
    ("value", "num_bytes"), [("x" * 11, 11), ("é" * 6, 12), ("\ud800" * 4, 12), ("x" * 10, 0)]
)
def test_the_size_limit_is_in_bytes(make: MakePool, value: str, num_bytes: int) -> None:
    """Refused at once, with size and limit; just at the limit it is not."""
    waiter = make(max_bytes=10).request(regex(value))
    if not num_bytes:
        assert waiter.exception(timeout=LONG_S) is None
        return
    assert waiter.done()
    fields = waiter.exception().fields
    assert fields["reason"] == "too_large"
    assert (fields["bytes"], fields["limit_bytes"]) == (num_bytes, 10)


def test_what_is_no_text_is_refused(make: MakePool) -> None:
    """A schema given as a dictionary is named as the mistake it is."""
    waiter = make().request(Constraint("json_schema", {"type": "object"}))
    assert isinstance(waiter.exception(), ConstraintRefused)
    assert "dict" in waiter.exception().message


def test_cancelling_the_last_who_waits_drops_the_work(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """What nobody wants any more leaves the queue; who still waits is not harmed."""
    pool = make(max_waiting=2)
    with compiler.gate("slow") as gate:
        pool.request(regex("slow"))
        assert gate.begun.wait(LONG_S)
        one, two, dropped = (pool.request(regex(value)) for value in ("a", "a", "b"))
        assert one.cancel()
        assert dropped.cancel()
        assert pool.counts().num_waiting == 2
        free = pool.request(regex("c"))
    assert two.exception(timeout=LONG_S) is None
    assert free.exception(timeout=LONG_S) is None
    assert "b" not in compiler.num_compiled
    with pytest.raises(CancelledError):
        one.result()


def test_work_that_was_begun_is_finished_for_the_next(
    make: MakePool, compiler: GatedCompiler
) -> None:
    """Cancelling does not stop it, and who asks meanwhile joins it."""
    pool = make()
    with compiler.gate("a") as gate:
        left = pool.request(regex("a"))
        assert gate.begun.wait(LONG_S)
        assert left.cancel()
        joined = pool.request(regex("a"))
    assert joined.exception(timeout=LONG_S) is None
    assert compiler.num_compiled["a"] == 1


def test_closing_refuses_all_who_wait(make: MakePool, compiler: GatedCompiler) -> None:
    """At once, also while a worker is stuck; nothing in the queue is compiled any more."""
    pool = make()
    with compiler.gate("slow") as gate:
        waiters = [pool.request(regex("slow"))]
        assert gate.begun.wait(LONG_S)
        waiters += [pool.request(regex("queued")) for _ in range(3)]
        pool.close()
        assert all(waiter.done() for waiter in waiters)
        assert {type(waiter.exception()) for waiter in waiters} == {Aborted}
        late = pool.request(regex("late"))
        assert isinstance(late.exception(), Aborted)
        pool.close()
    pool._workers.shutdown()
    assert set(compiler.num_compiled) == {"slow"}


def test_an_idle_pool_leaves_no_threads(make: MakePool) -> None:
    """After close, those that it had are gone."""
    before = set(threading.enumerate())
    pool = make(num_workers=3)
    wait([pool.request(regex(str(number))) for number in range(20)], timeout=LONG_S)
    pool.close()
    assert not set(threading.enumerate()) - before


@pytest.mark.parametrize("value", ["odd", "panic"])
def test_a_compiler_that_fails_ends_one_job(
    make: MakePool, caplog: pytest.LogCaptureFixture, value: str
) -> None:
    """Its waiters hear that it is our fault; the worker goes on, and it is tried again."""
    pool = make()
    with caplog.at_level(logging.CRITICAL):
        for _ in range(2):
            assert isinstance(end_of(pool.request(regex(value))), Broken)
    assert pool.request(regex("good")).exception(timeout=LONG_S) is None
    assert pool.counts().refused["broken"] == 2


def test_a_receiver_that_fails_harms_nobody(
    make: MakePool, compiler: GatedCompiler, caplog: pytest.LogCaptureFixture
) -> None:
    """Others who wait for the same grammar get it."""
    pool = make()

    def fail(waiter: Future[NewMatcher]) -> None:
        raise RuntimeError("a receiver's own")

    with caplog.at_level(logging.CRITICAL):
        with compiler.gate("a"):
            waiters = [pool.request(regex("a")) for _ in range(3)]
            for waiter in waiters:
                waiter.add_done_callback(fail)
        assert all(waiter.exception(timeout=LONG_S) is None for waiter in waiters)
    assert pool.request(regex("b")).exception(timeout=LONG_S) is None


def test_the_counts_tell_what_happened(make: MakePool) -> None:
    """Compiled, hits, refusals, kept; time is spent in workers only."""
    pool = make(max_bytes=10)
    for value in ("one", "one", "two", "bad", "bad", "x" * 11):
        wait([pool.request(regex(value))], timeout=LONG_S)
    counts = pool.counts()
    assert (counts.num_compiled, counts.num_hits) == (2, 1)
    assert (counts.num_kept, counts.kept_bytes) == (2, 6)
    assert counts.refused == {
        "invalid": 2,
        "too_large": 1,
        "timeout": 0,
        "busy": 0,
        "broken": 0,
    }
    assert counts.compile_ms > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"grammar_workers": 0},
        {"grammar_timeout_s": 0.0},
        {"grammar_timeout_s": float("inf")},
        {"grammar_timeout_s": float("nan")},
        {"max_grammar_bytes": 0},
        {"max_waiting_grammars": 0},
    ],
)
def test_settings_without_sense_are_refused(wrong: dict[str, float]) -> None:
    """By name, before any engine is made of them."""
    with pytest.raises(BadRequest) as caught:
        EngineConfig(**wrong)
    assert caught.value.param in wrong


def test_few_refusals_are_remembered() -> None:
    """By number and by characters; the least recently asked for go first."""
    refusals = RecentRefusals(max_entries=2, max_characters=10)
    error = ConstraintRefused("no", reason="bad")
    for value in ("a", "b"):
        refusals.add(regex(value), error)
    assert refusals.get(regex("a")).fields == {"reason": "bad"}
    refusals.add(regex("c"), error)
    assert [refusals.get(regex(value)) is None for value in "abc"] == [False, True, False]
    refusals.add(regex("d" * 10), error)
    assert [refusals.get(regex(value)) is None for value in "ac"] == [True, True]
    refusals.add(regex("e" * 11), error)
    assert refusals.get(regex("e" * 11)) is None
    assert refusals.get(regex("d" * 10)) is not None


class Endings:
    """What futures came to, each by its number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.count: Counter[int] = Counter()
        self.kinds: Counter[str] = Counter()

    def note(self, number: int, waiter: Future[NewMatcher]) -> None:
        """One end."""
        error = None if waiter.cancelled() else waiter.exception(timeout=0)
        kind = "cancelled" if waiter.cancelled() else type(error).__name__
        with self._lock:
            self.count[number] += 1
            self.kinds[kind] += 1


@pytest.mark.parametrize("seed", range(4))
def test_everybody_who_waits_has_one_end(
    make: MakePool, compiler: GatedCompiler, seed: int
) -> None:
    """Results, refusals, timeouts, cancelling and closing race; nobody hears two or none."""
    pool = make(num_workers=3, timeout_s=0.003, max_waiting=8)
    endings = Endings()
    num_threads, num_each = 6, 150
    values = ["stuck 1", "stuck 2", "bad", *(f"word {number}" for number in range(9))]
    start = threading.Barrier(num_threads + 1)

    def ask(thread: int) -> None:
        rng = random.Random(seed * 100 + thread)
        mine: list[Future[NewMatcher]] = []
        start.wait(LONG_S)
        for turn in range(num_each):
            number = thread * num_each + turn
            value = rng.choice(values)
            if "stuck" not in value:
                value = f"{value} {rng.randrange(60)}"
            waiter = pool.request(regex(value))
            waiter.add_done_callback(lambda done, n=number: endings.note(n, done))
            mine.append(waiter)
            if rng.random() < 0.4:
                rng.choice(mine).cancel()
            elif rng.random() < 0.4:  # else the queue is full all the time
                wait([waiter], timeout=LONG_S)
        asked.append(mine)

    asked: list[list[Future[NewMatcher]]] = []
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    with compiler.gate("stuck 1"), compiler.gate("stuck 2"):
        start.wait(LONG_S)
        if seed % 2:  # closing amid it all; else after all have asked
            threads[0].join(LONG_S)
            pool.close()
        for thread in threads:
            thread.join(LONG_S)
        waiters = [waiter for mine in asked for waiter in mine]
        assert not wait(waiters, timeout=LONG_S).not_done
    pool.close()
    pool._workers.shutdown()
    assert len(waiters) == num_threads * num_each
    assert endings.count == dict.fromkeys(range(num_threads * num_each), 1)
    assert compiler.most_at_once == 1
    assert pool.counts().num_waiting == 0
    assert (pool._jobs, pool._queue) == ({}, {})
