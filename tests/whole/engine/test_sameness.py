"""The same answer: cache on or off, in pieces or whole, together or alone, retracted or not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmserve.core import (
    BytesSource,
    EngineConfig,
    ImagePart,
    Request,
    SamplingParams,
    SchedConfig,
    TextPart,
    Turn,
)
from mmserve.engine import Answer, Engine, EngineTicket, collect

TOLERANCE = 1e-3
TIE = 1e-2
STEMS = ("", "The table has ", "The table has many things on it; ")


@dataclass(frozen=True)
class Ask:
    """One request of a mix."""

    stem: str
    pictures: tuple[int, ...]
    question: str
    num_tokens: int
    is_left: bool


def picture(seed: int) -> ImagePart:
    """A picture of random blocks."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((48, 48)).save(buffer, "PNG")
    return ImagePart(BytesSource(buffer.getvalue()))


ASKS = st.builds(
    Ask,
    stem=st.sampled_from(STEMS),
    pictures=st.lists(st.integers(0, 2), max_size=2).map(tuple),
    question=st.sampled_from(("a?", "ab?", "which one?", "")),
    num_tokens=st.integers(1, 8),
    is_left=st.sampled_from((False, False, False, True)),
)


def submit(engine: Engine, ask: Ask) -> EngineTicket:
    """Hand one request in."""
    parts = (TextPart(ask.stem), *map(picture, ask.pictures), TextPart(ask.question))
    turns = (Turn("user", parts), Turn("assistant", (), is_open=True))
    sampling = SamplingParams(
        max_new_tokens=ask.num_tokens,
        temperature=0.0,
        ignore_eos=True,
        return_logprobs=True,
        top_logprobs=2,
    )
    return engine.submit(Request(request_id="s", parts=turns, sampling=sampling))


def alone(engine: Engine, ask: Ask) -> Answer:
    """One request by itself."""
    return collect(submit(engine, ask).outputs())


def together(engine: Engine, asks: list[Ask]) -> list[Answer | None]:
    """All at once; those whose caller leaves give None."""
    tickets = [submit(engine, ask) for ask in asks]
    for ticket, ask in zip(tickets, asks, strict=True):
        if ask.is_left:
            ticket.cancel()
    return [
        None if ask.is_left else collect(ticket.outputs())
        for ticket, ask in zip(tickets, asks, strict=True)
    ]


def same(left: Answer, right: Answer) -> None:
    """Equal tokens up to a near tie, log-probabilities within the tolerance."""
    for a, b in zip(left.logprobs[0], right.logprobs[0], strict=True):
        if a.token_id != b.token_id:
            assert a.top[0][1] - a.top[1][1] < TIE
            return
        assert a.logprob == pytest.approx(b.logprob, abs=TOLERANCE)


def engine_with(directory, num_slots: int = 2048, **sched) -> Engine:
    """An engine that checks its ledgers after every step."""
    return Engine.from_config(
        EngineConfig(
            model=str(directory),
            num_slots=num_slots,
            threads=1,
            verify_steps=True,
            sched=SchedConfig(**sched),
        )
    )


@pytest.fixture(scope="module")
def reference(tiny_directory) -> Iterator[Engine]:
    """No cache, whole prompts; asked one request at a time."""
    with engine_with(tiny_directory, radix_cache=False) as engine:
        yield engine


@pytest.fixture(
    scope="module",
    params=[
        {},
        {"chunk_tokens": 7, "max_step_tokens": 20},
        {"num_slots": 180, "chunk_tokens": 16},
        {"max_running": 2},
        {"feature_cache_tokens": 16},
    ],
    ids=["cached", "chunked", "retracted", "two at a time", "few features"],
)
def variant(request: pytest.FixtureRequest, tiny_directory) -> Iterator[Engine]:
    """Another way to do the same work."""
    with engine_with(tiny_directory, **request.param) as engine:
        yield engine


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(asks=st.lists(ASKS, min_size=2, max_size=7))
def test_any_mix_is_answered_as_each_request_alone(
    reference: Engine, variant: Engine, asks: list[Ask]
) -> None:
    """A mix of requests, some abandoned, gives each the answer it has alone without a cache."""
    for ask, answer in zip(asks, together(variant, asks), strict=True):
        if answer is not None:
            same(answer, alone(reference, ask))
    assert variant.flush_cache(timeout_s=10)
    counters = variant.counters()
    assert counters["slots_free"] == counters["slots"]


def test_the_comparison_can_fail(reference: Engine) -> None:
    """Two different pictures give answers that are not the same."""
    one, two = (
        alone(reference, Ask("", (seed,), "which one?", 8, is_left=False)) for seed in (0, 1)
    )
    gaps = [
        abs(a.logprob - b.logprob)
        for a, b in zip(one.logprobs[0], two.logprobs[0], strict=True)
    ]
    assert max(gaps) > TOLERANCE
