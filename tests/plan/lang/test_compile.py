"""Compiled programs: the same answers; media early, rows grouped, shared prefixes once."""

from __future__ import annotations

import io
import random
import threading
import time

import pytest

import mmserve as sgl
from mmserve.core import (
    BytesSource,
    Finish,
    ImagePart,
    Output,
    Request,
    TextPart,
    Turn,
    Usage,
    VideoPart,
)
from mmserve.lang import ClientBackend
from mmserve.lang.compiler.grouping import grouped
from mmserve.lang.compiler.hoist import common_prefix
from mmserve.lang.compiler.source import read_source
from mmserve.testing.fake_client import FakeClient

PREFIX = "You answer questions about one picture, shortly, and say so if you cannot tell. "


@sgl.function
def ask(s, question, picture):
    """The picture reaches the prompt before the question."""
    s += sgl.user(PREFIX + sgl.image(picture) + question)
    s += sgl.assistant(sgl.gen("a", max_tokens=8))


def pictures(num: int) -> list[bytes]:
    """Contents that differ."""
    return [bytes([k]) * 64 for k in range(num)]


def test_source_tells_media_and_the_order_of_arguments():
    """Parameters in the order in which they are appended, and how media are shown."""

    def body(s, question, clip, count, first):
        if question:
            s += sgl.image(first, max_pixels=64)
        s += sgl.video(clip, count, fps=2) + question

    facts = read_source(body)
    assert facts.order == ("first", "clip", "count", "question")
    assert [(use.kind, use.parameter) for use in facts.media] == [
        ("image", "first"),
        ("video", "clip"),
    ]
    assert facts.media[0].values({}) == {"max_pixels": 64}
    assert facts.media[1].values({"count": 3}) == {"num_frames": 3, "fps": 2}
    assert facts.media[1].values({}) is None


def test_a_program_without_source_is_taken_by_its_signature():
    """Code that was never in a file compiles, too."""
    space: dict = {}
    exec("def body(s, b, a):\n    s += a + b", space)
    assert read_source(space["body"]).order == ("b", "a")


def test_rows_with_equal_arguments_stand_side_by_side():
    """Groups come in the order of their first rows; what differs in every row counts not."""
    rows = [{"id": k, "p": "ab"[k % 2], "q": k % 3} for k in range(6)]
    assert grouped(rows, ("id", "p", "q")) == [0, 4, 2, 3, 1, 5]
    assert grouped(rows, ("q", "p")) == [0, 3, 4, 1, 2, 5]
    assert grouped([{"id": 1}, {"id": 2}], ("id",)) == [0, 1]


def test_what_cannot_be_compared_by_value_is_compared_by_identity():
    """Arrays, pictures and lists are one thing only if they are the same object."""
    one, other = [1], [1]
    rows = [{"p": one}, {"p": other}, {"p": one}]
    assert grouped(rows, ("p",)) == [0, 2, 1]
    assert grouped([{"p": ([],)}, {"p": ([],)}], ("p",)) == [0, 1]


@pytest.mark.parametrize("seed", range(20))
def test_grouping_is_a_permutation_that_keeps_groups_whole(seed):
    """Every row once; equal first keys are contiguous."""
    chance = random.Random(seed)
    rows = [{"p": chance.randrange(4), "q": chance.randrange(5)} for _ in range(30)]
    order = grouped(rows, ("p", "q"))
    assert sorted(order) == list(range(30))
    keys = [rows[index]["p"] for index in order]
    assert len([k for k in range(30) if k == 0 or keys[k] != keys[k - 1]]) == len(set(keys))


def test_common_prefix_is_cut_inside_the_turn_that_differs():
    """Equal parts whole, then the equal beginning of a text; the last turn is open."""
    picture = ImagePart(BytesSource(b"x"))
    one = (Turn("system", (TextPart("S"),)), Turn("user", (picture, TextPart("How many?"))))
    other = (Turn("system", (TextPart("S"),)), Turn("user", (picture, TextPart("How big?"))))
    assert common_prefix(one, other) == (
        Turn("system", (TextPart("S"),)),
        Turn("user", (picture, TextPart("How ")), is_open=True),
    )
    assert common_prefix(one, one) == one
    assert common_prefix((TextPart("a"),), (TextPart("b"),)) == ()


@pytest.mark.parametrize("num_threads", [1, 4, 16])
def test_a_compiled_batch_gives_the_same_states_in_the_same_places(num_threads):
    """Texts, values and rows equal those of the program as written."""
    shown = pictures(3)
    rows = [{"question": f"Q{k}?", "picture": shown[k % 3]} for k in range(12)]
    plain = ask.run_batch(rows, backend=FakeClient(), temperature=0)
    compiled = ask.compile().run_batch(
        rows, backend=FakeClient(), temperature=0, num_threads=num_threads
    )
    assert [s.text() for s in compiled] == [s.text() for s in plain]
    assert [s.row for s in compiled] == list(range(12))


def test_a_batch_computes_its_shared_prefix_once_before_its_rows():
    """One call that generates nothing, with what the rows' own first calls have in common."""
    client = FakeClient()
    rows = [{"question": f"{k}?", "picture": pictures(1)[0]} for k in range(8)]
    ask.compile(backend=client).run_batch(rows, num_threads=8)
    hoisted = [r for r in client.requests if r.sampling.max_new_tokens == 0]
    assert len(hoisted) == 1
    assert client.requests[0] is hoisted[0]
    (turn,) = hoisted[0].parts
    assert turn.is_open
    assert [type(part) for part in turn.parts] == [TextPart, ImagePart]


def test_precaching_can_be_switched_off(monkeypatch):
    """`global_config.enable_precache_with_tracing` False makes no call of its own."""
    monkeypatch.setattr(sgl.global_config, "enable_precache_with_tracing", False)
    client = FakeClient()
    rows = [{"question": f"{k}?", "picture": b"x"} for k in range(4)]
    ask.compile(backend=client).run_batch(rows)
    assert len(client.requests) == 4


def test_a_body_runs_once_a_row_on_its_own_arguments():
    """Nothing is run on placeholders to compile a batch, and rows' effects are their own."""
    calls: list[str] = []

    @sgl.function
    def program(s, q):
        calls.append(q)
        s += PREFIX + q + sgl.gen("a")

    compiled = program.compile()
    assert calls == []
    compiled.run_batch([{"q": "one"}, {"q": "two"}], backend=FakeClient())
    assert sorted(calls) == ["one", "two"]
    calls.clear()
    rows = [{"q": q} for q in ("b", "a", "b", "a")]
    compiled.run_batch(rows, backend=FakeClient(), num_threads=1)
    assert calls == ["b", "a", "b", "a"]


def test_rows_that_wait_for_each_other_are_not_held_up():
    """A row that only starts calling when another has answered does not wait for a prefix."""
    has_answered = threading.Event()

    @sgl.function
    def program(s, leads):
        if not leads:
            has_answered.wait(30)
        s += PREFIX + sgl.gen("a")
        _ = s["a"]
        has_answered.set()

    client = FakeClient()
    rows = [{"leads": False}, {"leads": True}]
    states = program.compile(backend=client).run_batch(rows, num_threads=2)
    assert all(state.error() is None for state in states)


def test_a_failing_prefix_call_is_left_to_the_rows(client: FakeClient):
    """Rows whose prefix the backend refuses carry their own errors, and all end."""

    @sgl.function
    def program(s, q):
        s += PREFIX + "BOOM" + q + sgl.gen("a")

    states = program.compile(backend=client).run_batch([{"q": "1"}, {"q": "2"}])
    assert [type(state.error()).__name__ for state in states] == ["BackendFailed"] * 2


def until(is_true, limit_s: float = 10.0) -> bool:
    """Whether it becomes true in time."""
    end = time.monotonic() + limit_s
    while not is_true() and time.monotonic() < end:
        time.sleep(0.005)
    return is_true()


def test_media_among_the_arguments_are_prepared_from_the_start():
    """A compiled run tells the backend of a clip that its body shows only after an answer."""

    @sgl.function
    def program(s, clip, frames):
        s += "Shall I look?" + sgl.gen("a")
        is_known.append(until(lambda: bool(client.prepared)))
        s += sgl.video(clip, num_frames=frames) + sgl.gen("b")

    is_known: list[bool] = []
    client = FakeClient()
    program.compile(backend=client).run(clip=b"clip", frames=2)
    assert is_known == [True]
    assert client.prepared[0] == VideoPart(BytesSource(b"clip"), 2)


def test_media_appended_behind_a_call_are_prepared_at_the_append(slow_client: FakeClient):
    """Any run tells the backend of a picture while an earlier call is still under way."""

    @sgl.function
    def program(s):
        s += "One." + sgl.gen("a")
        s += sgl.image(b"picture") + sgl.gen("b")
        seen.append((list(slow_client.prepared), s.execution.variables["a"].is_done))

    seen: list = []
    state = program.run(backend=slow_client)
    state.sync()
    assert seen == [([ImagePart(BytesSource(b"picture"))], False)]


def test_missing_media_raise_at_the_append_only(client: FakeClient):
    """Early work on a path that does not exist changes nothing of when and how it fails."""

    @sgl.function
    def program(s, picture, is_shown):
        s += "x" + sgl.gen("a")
        if is_shown:
            s += sgl.image(picture)

    compiled = program.compile(backend=client)
    compiled.run("/no/such/file.png", False).sync()
    with pytest.raises(sgl.errors.MediaRefused):
        compiled.run("/no/such/file.png", True)


def test_compiled_programs_bind_draw_and_trace(client: FakeClient):
    """`bind`, `graph` and `trace` are those of the program."""
    compiled = ask.compile(backend=client).bind(picture=b"x")
    assert compiled.run("Why?")["a"] == ask.run("Why?", b"x", backend=client)["a"]
    assert "image  bytes" in compiled.graph()
    assert compiled.graph("svg").startswith("<svg")
    with pytest.raises(sgl.errors.BadRequest, match="form"):
        compiled.graph("png")


def test_what_can_be_read_once_is_left_to_the_append():
    """A file object is read by the body only, though its neighbours are prepared early."""

    @sgl.function
    def program(s, file, clip):
        is_prepared.append(until(lambda: bool(client.prepared)))
        positions.append(file.tell())
        s += sgl.image(file) + sgl.video(clip) + sgl.gen("a")

    is_prepared: list[bool] = []
    positions: list[int] = []
    client = FakeClient()
    state = program.compile(backend=client).run(io.BytesIO(b"picture"), b"clip")
    assert (is_prepared, positions) == ([True], [0])
    assert state["a"] == program.run(io.BytesIO(b"picture"), b"clip", backend=client)["a"]


def test_early_work_that_fails_in_any_way_is_left_to_the_append():
    """Not even an unknown kind of error shows, in this thread or another."""

    class Odd:
        def __fspath__(self):
            raise RuntimeError

    @sgl.function
    def program(s, picture, clip):
        is_prepared.append(until(lambda: bool(client.prepared)))
        s += "x" + sgl.gen("a")
        if picture is None:
            s += sgl.image(picture) + sgl.video(clip)

    is_prepared: list[bool] = []
    client = FakeClient()
    program.compile(backend=client).run(Odd(), b"clip").sync()
    assert is_prepared == [True]


class Stuck(ClientBackend):
    """Calls that generate nothing never end by themselves."""

    def start(self, request):
        """As the engine, but for those."""
        if request.sampling.max_new_tokens == 0:
            return StuckCall(request)
        return super().start(request)


class StuckCall:
    """A call that waits to be cancelled."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._is_cancelled = threading.Event()

    def outputs(self):
        """Its end, once it is cancelled."""
        self._is_cancelled.wait()
        yield Output(self._request.request_id, 0, "", (), Usage(1), finish=Finish("abort"))

    def cancel(self):
        """Let it end."""
        self._is_cancelled.set()


@pytest.mark.parametrize("is_the_runs", [True, False])
def test_a_shared_prefix_is_waited_for_no_longer_than_a_call(is_the_runs):
    """Rows go on by themselves when the prefix takes longer than their calls may."""

    @sgl.function
    def program(s, q):
        s += PREFIX + q + sgl.gen("a", timeout_s=None if is_the_runs else 2)

    rows = [(str(k),) for k in range(4)]
    limit = {"timeout_s": 2} if is_the_runs else {}
    states = program.compile().run_batch(rows, backend=Stuck(FakeClient()), **limit)
    assert [len(state["a"]) for state in states] == [8] * 4


def test_a_compiled_program_caches_its_prefix(client: FakeClient):
    """`cache` needs no arguments, compiled or not."""
    ask.compile(backend=client).cache()
    (request,) = client.requests
    assert request.parts == (Turn("user", (TextPart(PREFIX),), is_open=True),)
