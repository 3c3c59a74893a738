"""Hints in an engine: media are done before the request, once, and no hint is an error."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from plan.vision.making import png_chunk
from whole.engine.test_engine import GREEDY, ask, picture

from mmserve.core import (
    BytesSource,
    EngineConfig,
    ForwardPlan,
    ImagePart,
    MediaConfig,
    MediaRefused,
    PathSource,
    Pending,
    Request,
    SamplingParams,
    TextPart,
    Turn,
    UrlSource,
)
from mmserve.engine import Engine, collect
from mmserve.engine.load import load_parts

LONG = SamplingParams(max_new_tokens=400, temperature=0.0, ignore_eos=True)


@pytest.fixture
def fresh(tiny_directory) -> Iterator[Engine]:
    """An engine of its own."""
    with Engine.from_config(settings(tiny_directory)) as engine:
        yield engine


def settings(tiny_directory) -> EngineConfig:
    """A small engine that checks its ledgers after every step."""
    return EngineConfig(
        model=str(tiny_directory),
        num_slots=2048,
        threads=1,
        verify_steps=True,
        media=MediaConfig(allow_private_hosts=True),
    )


def until(engine: Engine, holds: Callable[[dict[str, float]], bool]) -> dict[str, float]:
    """Counters once they are so; fails if they never are."""
    deadline = time.monotonic() + 30
    while not holds(counters := engine.counters()):
        assert time.monotonic() < deadline, counters
        time.sleep(0.005)
    return counters


def counted(engine: Engine, *names: str) -> list[float]:
    """Some counters."""
    counters = engine.counters()
    return [counters[f"{name}_total"] for name in names]


def test_a_request_after_its_hint_finds_the_picture_encoded(fresh: Engine) -> None:
    """One decode and one encode in all, and the request is told of neither."""
    image = picture(1)
    want = collect(ask(fresh, image, TextPart("Which?")).outputs()).text
    assert fresh.flush_cache(timeout_s=30)
    fresh.prepare(image)
    fresh.prepare(image)
    until(fresh, lambda counters: counters["early_items_total"] == 1)
    answer = collect(ask(fresh, image, TextPart("Which?")).outputs())
    assert answer.text == want
    (timing,) = answer.timings
    assert (timing.decode, timing.preprocess, timing.encode) == (0, 0, 0)
    assert answer.usage.cached_image_tokens == 0
    assert counted(fresh, "media_decodes", "encoded_items", "early_items_used") == [2, 2, 1]


def test_a_request_right_after_its_hint_shares_the_work(fresh: Engine) -> None:
    """Wherever the hint stands, nothing is decoded or encoded twice."""
    for seed in range(10):
        fresh.prepare(picture(seed))
        collect(ask(fresh, picture(seed), TextPart("Which?")).outputs())
    assert counted(fresh, "media_decodes", "encoded_items") == [10, 10]


def test_an_answer_under_way_leaves_time_for_a_hint(tiny_directory) -> None:
    """The picture of the next question is encoded in a step with the answer's row."""
    parts = load_parts(settings(tiny_directory))
    runner = Watched(parts.runner)
    with Engine.from_parts(dataclasses.replace(parts, runner=runner)) as engine:
        ticket = ask(engine, TextPart("Tell."), sampling=LONG)
        assert runner.has_rows.wait(30)
        engine.prepare(picture(1))
        collect(ticket.outputs())
    assert [num_rows for num_rows, num_items in runner.steps if num_items] == [1]


class Watched:
    """A runner that notes rows and pictures of its steps, slow until there is a picture."""

    def __init__(self, runner) -> None:
        self.has_rows = threading.Event()
        self.has_picture = threading.Event()
        self.steps: list[tuple[int, int]] = []
        self._runner = runner

    looks_ahead = False

    def launch(self, plan: ForwardPlan, _begun=None) -> Pending:
        """The step."""
        self.steps.append((len(plan.rows), len(plan.encode)))
        self.has_rows.set()
        if plan.encode:
            self.has_picture.set()
        self.has_picture.wait(0.02)
        return self._runner.launch(plan)


def test_an_address_is_fetched_once_for_hint_and_request(fresh: Engine, media_host) -> None:
    """The request tells of next to no time for fetching; another tenant fetches for itself."""
    content = picture(3).source.content
    image = ImagePart(UrlSource(media_host.put("/a.png", content)))
    fresh.prepare(image)
    until(fresh, lambda counters: counters["early_items_total"] == 1)
    answer = collect(ask(fresh, image, TextPart("Which?")).outputs())
    assert media_host.hits == ["/a.png"]
    assert counted(fresh, "media_fetches", "media_decodes", "media_prepared") == [1, 1, 1]
    assert answer.timings[0].encode == 0
    turns = (Turn("user", (image, TextPart("?"))), Turn("assistant", (), is_open=True))
    other = Request(request_id="r", parts=turns, sampling=GREEDY, cache_salt="other")
    collect(fresh.submit(other).outputs())
    assert media_host.hits == ["/a.png"] * 2
    assert counted(fresh, "media_decodes", "encoded_items") == [2, 2]


@pytest.mark.parametrize(
    "source",
    [
        BytesSource(b"no picture"),
        BytesSource(b""),
        UrlSource("http://127.0.0.1:1/a.png"),
        UrlSource("nothing"),
        PathSource("/missing.png"),
    ],
)
def test_a_bad_picture_is_refused_when_a_request_uses_it(fresh: Engine, source) -> None:
    """The hint says nothing, and others are served."""
    fresh.prepare(ImagePart(source))
    with pytest.raises(MediaRefused):
        collect(ask(fresh, ImagePart(source), TextPart("Which?")).outputs())
    fresh.prepare(picture(1))
    until(fresh, lambda counters: counters["early_items_total"] == 1)


def test_a_picture_that_cannot_be_decoded_ends_its_hint(fresh: Engine) -> None:
    """Its header is good, so it is taken up; that it has no pixels stays with it."""
    begin = picture(4).source.content[:33]
    content = begin + png_chunk(b"IDAT", b"no pixels") + png_chunk(b"IEND", b"")
    spoilt = ImagePart(BytesSource(content))
    fresh.prepare(spoilt)
    until(fresh, lambda counters: counters["media_decodes_total"] == 1)
    fresh.prepare(picture(1))
    until(fresh, lambda counters: counters["early_items_total"] == 1)
    with pytest.raises(MediaRefused):
        collect(ask(fresh, spoilt, TextPart("Which?")).outputs())


def test_a_flush_forgets_what_hints_brought(fresh: Engine, media_host) -> None:
    """Features and fetched bytes are gone, and a request does all the work."""
    image = ImagePart(UrlSource(media_host.put("/a.png", picture(3).source.content)))
    fresh.prepare(image)
    until(fresh, lambda counters: counters["early_items_total"] == 1)
    assert fresh.flush_cache(timeout_s=30)
    assert fresh.counters()["feature_tokens"] == 0
    collect(ask(fresh, image, TextPart("Which?")).outputs())
    assert counted(fresh, "media_fetches", "media_decodes", "encoded_items") == [2, 2, 2]


def test_an_engine_closes_with_hints_under_way(tiny_directory) -> None:
    """Nothing hangs, and a hint afterwards does nothing."""
    before = set(threading.enumerate())
    engine = Engine.from_config(settings(tiny_directory))
    for seed in range(100):
        engine.prepare(picture(seed))
    engine.close()
    engine.prepare(picture(1))
    new = set(threading.enumerate()) - before
    assert not [thread for thread in new if thread.name.startswith("mmserve")]


def test_a_model_without_eyes_takes_hints_for_nothing(tiny_directory) -> None:
    """No error, and nothing done."""
    parts = load_parts(settings(tiny_directory))
    with Engine.from_parts(dataclasses.replace(parts, plane=None)) as engine:
        engine.prepare(picture(1))
        assert engine.counters()["early_items_total"] == 0
    parts.plane.close()
