"""Grammars are compiled beside the engine: who waits for one holds nothing and stops nobody."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import httpx
import pytest
from support.gated_compiler import Gate, GatedCompiler
from whole.engine.test_engine import GREEDY, ask, picture

from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    Busy,
    Constraint,
    ConstraintRefused,
    EngineConfig,
    ImagePart,
    MediaConfig,
    MmserveError,
    SamplingParams,
    ServerConfig,
    TextPart,
    UrlSource,
)
from mmserve.engine import Engine, EngineTicket, collect
from mmserve.server import RunningServer

LONG_S = 60.0
SLOW = "slow [a-z]{3}"
Open = Callable[..., tuple[Engine, GatedCompiler]]


def under(value: str, kind: str = "regex") -> SamplingParams:
    """A greedy answer under a grammar."""
    return replace(GREEDY, ignore_eos=False, constraint=Constraint(kind, value))


def ask_slow(engine: Engine, *parts: TextPart | ImagePart) -> EngineTicket:
    """A ticket for an answer under the grammar that has a gate."""
    return ask(engine, *(parts or (TextPart("Hi"),)), sampling=under(SLOW))


@pytest.fixture
def opened(tiny_directory) -> Iterator[Open]:
    """Opens engines of their own with one compile worker, which a test may stop."""
    engines: list[Engine] = []

    def make(**settings: float) -> tuple[Engine, GatedCompiler]:
        config = EngineConfig(
            model=str(tiny_directory),
            num_slots=2048,
            threads=1,
            verify_steps=True,
            media=MediaConfig(allow_private_hosts=True),
            **{"grammar_workers": 1, "grammar_timeout_s": LONG_S, **settings},
        )
        engines.append(Engine.from_config(config))
        pool = engines[-1]._parts.grammars
        pool._compiler = GatedCompiler(pool._compiler)
        return engines[-1], pool._compiler

    yield make
    for engine in engines:
        engine.close()


def begin(engine: Engine, gate: Gate) -> None:
    """Ask for the slow grammar until the worker has begun it, and leave."""
    while not gate.begun.is_set():
        ticket = ask_slow(engine)
        gate.begun.wait(timeout=0.05)
        ticket.cancel()


def refusal(ticket: EngineTicket) -> MmserveError:
    """Why a ticket was refused: report and outputs say the same."""
    with pytest.raises(MmserveError) as caught:
        ticket.report(timeout_s=LONG_S)
    with pytest.raises(type(caught.value)):
        list(ticket.outputs())
    return caught.value


def test_others_go_on_while_a_grammar_is_stuck(opened: Open) -> None:
    """With the only worker stuck: text, a picture, and a grammar that is known."""
    engine, compiler = opened()
    known = under("[ab]{3}")
    want = collect(ask(engine, TextPart("Hi"), sampling=known).outputs()).text
    with compiler.gate(SLOW) as gate:
        slow = [ask_slow(engine) for _ in range(20)]
        assert gate.begun.wait(LONG_S)
        others = [
            ask(engine, TextPart("Hi")),
            ask(engine, picture(1), TextPart("What?")),
            ask(engine, TextPart("Hi"), sampling=known),
        ]
        answers = [collect(ticket.outputs()) for ticket in others]
        assert answers[2].text == want
        assert len(answers[0].token_ids[0]) == GREEDY.max_new_tokens
        assert engine.counters()["grammar_waiting"] == 20
    assert {collect(ticket.outputs()).text[:5] for ticket in slow} == {"slow "}
    assert compiler.num_compiled[SLOW] == 1


def test_who_waits_holds_nothing(opened: Open, media_host) -> None:
    """No slot, no place in the scheduler, no picture fetched; the grammar comes first."""
    engine, compiler = opened()
    url = media_host.put("/a.png", picture(1).source.content)
    with compiler.gate(SLOW) as gate:
        ticket = ask_slow(engine, ImagePart(UrlSource(url)), TextPart("What?"))
        assert gate.begun.wait(LONG_S)
        collect(ask(engine, TextPart("Hi")).outputs())
        assert engine.flush_cache(timeout_s=LONG_S)
        counters = engine.counters()
        names = ("waiting", "running", "slots_held", "slots_cached", "media_fetches_total")
        assert [counters[name] for name in names] == [0] * len(names)
        assert media_host.hits == []
    assert collect(ticket.outputs()).text.startswith("slow ")
    assert media_host.hits == ["/a.png"]


def test_media_of_a_refused_grammar_are_not_fetched(opened: Open, media_host) -> None:
    """The refusal of the grammar wins, and costs no network."""
    engine, _ = opened()
    url = media_host.put("/a.png", picture(1).source.content)
    parts = (ImagePart(UrlSource(url)), TextPart("What?"))
    for _ in range(2):  # found out, and remembered
        assert isinstance(
            refusal(ask(engine, *parts, sampling=under("[a-"))), ConstraintRefused
        )
    assert media_host.hits == []


def test_cancelling_ends_the_wait_at_once(opened: Open, media_host) -> None:
    """While the worker is still stuck; later nothing comes after it."""
    engine, compiler = opened()
    url = media_host.put("/a.png", picture(1).source.content)
    with compiler.gate(SLOW) as gate:
        stays, leaves = (ask_slow(engine, ImagePart(UrlSource(url))) for _ in range(2))
        assert gate.begun.wait(LONG_S)
        leaves.cancel()
        leaves.cancel()
        assert isinstance(refusal(leaves), Aborted)
        assert engine.counters()["grammar_waiting"] == 1
    assert collect(stays.outputs()).text.startswith("slow ")
    assert media_host.hits == ["/a.png"]
    assert engine._grammars == {}


def test_closing_ends_the_wait_at_once(opened: Open) -> None:
    """All who wait are refused though the worker is stuck, and close comes back."""
    engine, compiler = opened()
    with compiler.gate(SLOW) as gate:
        tickets = [ask_slow(engine) for _ in range(3)]
        assert gate.begun.wait(LONG_S)
        tickets.append(ask(engine, TextPart("Hi"), sampling=under("behind [a-z]")))
        engine.close()
        errors = [refusal(ticket) for ticket in tickets]
        errors += [refusal(ask_slow(engine)), refusal(ask(engine, TextPart("Hi")))]
    assert {type(error) for error in errors} == {Broken}
    assert all("closed" in error.message for error in errors)
    assert engine._grammars == {}


def test_a_grammar_that_takes_too_long_is_refused(opened: Open) -> None:
    """With reason and limit; when it is done, it is known to the next request."""
    engine, compiler = opened(grammar_timeout_s=0.2)
    with compiler.gate(SLOW) as gate:
        begin(engine, gate)
        late = refusal(ask_slow(engine))
        assert isinstance(late, ConstraintRefused)
        assert (late.fields["reason"], late.fields["timeout_s"]) == ("timeout", 0.2)
        behind = refusal(ask(engine, TextPart("Hi"), sampling=under("behind [a-z]")))
        assert isinstance(behind, Busy)
        counters = engine.counters()
    assert counters['grammar_refusals_total{reason="timeout"}'] == 1
    assert counters['grammar_refusals_total{reason="busy"}'] == 1
    assert collect(ask(engine, TextPart("Hi")).outputs()).finishes[0].reason == "length"


def test_bad_values_are_refused_before_the_grammar_is_asked_for(opened: Open) -> None:
    """No work for a request that cannot be served anyway."""
    engine, compiler = opened()
    ticket = ask(engine, TextPart("Hi"), sampling=replace(under(SLOW), top_p=0.0))
    assert isinstance(refusal(ticket), BadRequest)
    assert not compiler.num_compiled


def test_refusals_over_http(opened: Open) -> None:
    """Time and size are the caller's to mend, a full queue is not; all are told at once."""
    engine, compiler = opened(
        grammar_timeout_s=0.2, max_grammar_bytes=100, max_waiting_grammars=1
    )
    with RunningServer(engine, ServerConfig(port=0)) as server, compiler.gate(SLOW) as gate:
        begin(engine, gate)

        def post(pattern: str) -> httpx.Response:
            body = {"text": "Hi", "sampling_params": {"regex": pattern, "max_new_tokens": 4}}
            return httpx.post(f"{server.url}/generate", json=body, timeout=LONG_S)

        late, large = post(SLOW), post("x" * 101)
        assert (late.status_code, large.status_code) == (400, 400)
        assert "0.2 s" in late.json()["error"]["message"]
        assert "101 bytes, the limit is 100" in large.json()["error"]["message"]
        assert {reply.json()["error"]["code"] for reply in (late, large)} == {
            "constraint_refused"
        }
        busy = post("behind")
        assert busy.status_code == 429
        assert busy.headers["retry-after"] == "1"


def test_the_counters_tell_of_grammars(opened: Open) -> None:
    """Compiled, found, refused, kept."""
    engine, _ = opened(max_grammar_bytes=100)
    for value in ("[ab]{3}", "[ab]{3}", "[a-", "x" * 101):
        ticket = ask(engine, TextPart("Hi"), sampling=under(value))
        try:
            collect(ticket.outputs())
        except ConstraintRefused:
            continue
    counters = engine.counters()
    names = ("grammars_compiled_total", "grammar_hits_total", "grammars", "grammar_waiting")
    assert [counters[name] for name in names] == [1, 1, 1, 0]
    assert counters["grammar_bytes"] > 0
    assert counters["grammar_compile_ms_total"] > 0
    told = {name: value for name, value in counters.items() if "refusals" in name}
    assert told == {
        'grammar_refusals_total{reason="invalid"}': 1,
        'grammar_refusals_total{reason="too_large"}': 1,
        'grammar_refusals_total{reason="timeout"}': 0,
        'grammar_refusals_total{reason="busy"}': 0,
        'grammar_refusals_total{reason="broken"}': 0,
    }


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closing"])
def test_each_ticket_has_one_end(opened: Open, closes) -> None:
    """Answers, refusals, timeouts, cancelling and closing race; nobody hears two or none."""
    engine, compiler = opened(grammar_timeout_s=0.05, grammar_workers=2, max_waiting_grammars=8)
    num_threads, num_each = 4, 20
    values = [SLOW, "[a-", *(f"[ab]{{{number}}}" for number in range(1, 8))]
    ends: list[str] = []

    def run(thread: int) -> None:
        rng = random.Random(thread)
        for _ in range(num_each):
            parts = (picture(1), TextPart("a")) if rng.random() < 0.2 else (TextPart("a"),)
            ticket = ask(engine, *parts, sampling=under(rng.choice(values)))
            if rng.random() < 0.5:
                ticket.cancel()
            ends.append(one_end(ticket))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    with compiler.gate(SLOW):
        for thread in threads:
            thread.start()
        if closes:
            collect_or_refuse(ask(engine, TextPart("b")))
            engine.close()
        for thread in threads:
            thread.join(timeout=120)
    assert len(ends) == num_threads * num_each
    assert engine._grammars == {}
    if not closes:
        counters = engine.counters()
        names = ("grammar_waiting", "running", "waiting", "slots_held")
        assert [counters[name] for name in names] == [0] * len(names)


def one_end(ticket: EngineTicket) -> str:
    """How a ticket ended; fails if it says more than that."""
    outputs = []
    try:
        for output in ticket.outputs():
            outputs.append(output)
    except MmserveError as error:
        assert not outputs
        return type(error).__name__
    finishes = [output.finish.reason for output in outputs if output.finish is not None]
    assert len(finishes) == 1
    assert outputs[-1].finish is not None
    return finishes[0]


def collect_or_refuse(ticket: EngineTicket) -> None:
    """Wait for the end, whatever it is."""
    one_end(ticket)


class Dying:
    """A matcher of which one method fails once so many tokens were accepted."""

    def __init__(self, inner, method: str, error: Exception, after: int) -> None:
        self._inner = inner
        self._method = method
        self._error = error
        self._left = after

    def _call(self, method: str, *args):
        if method == self._method and self._left <= 0:
            raise self._error
        return getattr(self._inner, method)(*args)

    def allowed(self):
        """See `core.Matcher`."""
        return self._call("allowed")

    def accept(self, token_id):
        """See `core.Matcher`."""
        self._call("accept", token_id)
        self._left -= 1

    def jump(self, *args):
        """See `core.Matcher`."""
        return self._call("jump", *args)

    def rollback(self, num_tokens):
        """See `core.Matcher`."""
        self._inner.rollback(num_tokens)

    def fork(self):
        """See `core.Matcher`."""
        return Dying(self._inner.fork(), self._method, self._error, self._left)

    @property
    def is_finished(self):
        """See `core.Matcher`."""
        return self._inner.is_finished


@pytest.mark.parametrize("after", [0, 10])
@pytest.mark.parametrize("method", ["allowed", "accept", "jump"])
@pytest.mark.parametrize(
    "error", [ConstraintRefused("too complex", reason="limit"), RuntimeError("unforeseen")]
)
def test_a_grammar_that_dies_late_ends_its_own_row(
    opened: Open,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method,
    error,
    after,
) -> None:
    """Its answer ends with the error; neighbours of the same steps, and later ones, go on."""
    caplog.set_level(logging.CRITICAL)
    engine, compiler = opened()
    dies, stays = under("dies [a-z]{30}"), under("stays [a-z]{30}")
    dies, stays = (replace(one, max_new_tokens=30) for one in (dies, stays))
    cached = compiler.cached

    def dying(constraint: Constraint):
        maker = cached(constraint)
        if maker is None or constraint != dies.constraint:
            return maker
        return lambda: Dying(maker(), method, error, after)

    want = collect(ask(engine, TextPart("Hi"), sampling=stays).outputs()).text
    collect(ask(engine, TextPart("Hi"), sampling=dies).outputs())  # known from now on
    monkeypatch.setattr(compiler, "cached", dying)
    neighbours = [ask(engine, TextPart("Hi"), sampling=stays) for _ in range(2)]
    with pytest.raises(MmserveError) as caught:
        collect(ask(engine, TextPart("Hi"), sampling=dies).outputs())
    assert isinstance(caught.value, ConstraintRefused | Broken)
    neighbours.append(ask(engine, TextPart("Hi"), sampling=stays))
    assert [collect(ticket.outputs()).text for ticket in neighbours] == [want] * 3
    assert engine.counters()["slots_held"] == 0


def test_a_grammar_that_becomes_too_complex_ends_its_own_answer(opened: Open) -> None:
    """Every token may be in so many places that soon nobody can say what comes next."""
    engine, _ = opened()
    ways = " | ".join(" ".join(["s"] * number) for number in range(2, 20))
    hard = under(f'root ::= s\ns ::= "x" | {ways}', "ebnf")
    hard = replace(hard, min_new_tokens=150, max_new_tokens=200)
    long = replace(GREEDY, max_new_tokens=60)
    neighbour = ask(engine, TextPart("Hi"), sampling=long)
    with pytest.raises(ConstraintRefused):
        collect(ask(engine, TextPart("Hi"), sampling=hard).outputs())
    assert len(collect(neighbour.outputs()).token_ids[0]) == 60
    assert engine.counters()["slots_held"] == 0
