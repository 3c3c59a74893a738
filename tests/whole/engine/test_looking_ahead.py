"""Steps that are begun before the last one is back give the answers of steps in turn."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from mmserve.core import (
    Begun,
    BytesSource,
    EngineConfig,
    ForwardPlan,
    ImagePart,
    Pending,
    Request,
    RunnerFailed,
    SamplingParams,
    SchedConfig,
    TextPart,
    Turn,
)
from mmserve.engine import Engine, EngineTicket, collect

_NUM_ASKED = 14


class _AheadRunner:
    """An engine's own runner, told to look ahead; counts what it had begun and used."""

    looks_ahead = True

    def __init__(self, runner) -> None:
        self.num_begun = self.num_used = 0
        self.is_failing = False
        self._runner = runner

    def begin(self, plan: ForwardPlan, after: Pending) -> Begun:
        self.num_begun += 1
        if self.is_failing:
            self.is_failing = False
            raise RunnerFailed("injected", step=plan.step)
        return self._runner.begin(plan, after)

    def launch(self, plan: ForwardPlan, begun: Begun | None = None) -> Pending:
        self.num_used += begun is not None
        return self._runner.launch(plan, begun)


def _engine(directory, **sched) -> Engine:
    config = EngineConfig(
        model=str(directory),
        num_slots=2048,
        threads=1,
        verify_steps=True,
        sched=SchedConfig(**sched),
    )
    return Engine.from_config(config)


def _ask(engine: Engine, number: int) -> EngineTicket:
    """One of several kinds of requests: greedy, seeded, ended early, with a picture."""
    blocks = np.random.default_rng(number % 3).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((64, 64)).save(buffer, "PNG")
    parts = (ImagePart(BytesSource(buffer.getvalue())),) if number % 2 else ()
    sampling = SamplingParams(
        max_new_tokens=6 + 5 * (number % 4),
        temperature=0.0 if number % 3 else 1.0,
        seed=number,
        repetition_penalty=1.2 if number % 5 == 0 else 1.0,
        ignore_eos=number % 4 != 0,
        return_logprobs=number % 2 == 0,
    )
    turns = (
        Turn("user", (*parts, TextPart(f"{number}. Which?"))),
        Turn("assistant", (), is_open=True),
    )
    return engine.submit(Request(request_id=str(number), parts=turns, sampling=sampling))


def _answers(engine: Engine) -> list[tuple[int, ...]]:
    """Tokens of many requests that come together, then of some that come one by one."""
    tickets = [_ask(engine, number) for number in range(_NUM_ASKED)]
    together = [collect(ticket.outputs()).token_ids[0] for ticket in tickets]
    return together + [collect(_ask(engine, n).outputs()).token_ids[0] for n in range(4)]


@pytest.mark.parametrize(
    "sched", [{}, {"max_running": 3}, {"chunk_tokens": 8}, {"page_tokens": 4}]
)
def test_looking_ahead_changes_no_answer(tiny_directory, sched: dict[str, int]) -> None:
    """Greedy, seeded, penalised and cut answers are equal, and many steps were begun early."""
    with _engine(tiny_directory, **sched) as plain:
        expected = _answers(plain)
    with _engine(tiny_directory, **sched) as ahead:
        runner = _AheadRunner(ahead._loop._runner)
        ahead._loop._runner = runner
        found = _answers(ahead)
        num_steps = ahead.counters()["steps_total"]
    assert found == expected
    assert runner.num_used > num_steps // 3


def test_a_failed_beginning_ends_the_step_that_is_out(tiny_directory) -> None:
    """Its rows end with the error, and the engine answers the next request."""
    with _engine(tiny_directory) as engine:
        runner = _AheadRunner(engine._loop._runner)
        engine._loop._runner = runner
        before = collect(_ask(engine, 1).outputs()).token_ids
        runner.is_failing = True
        with pytest.raises(RunnerFailed):
            collect(_ask(engine, 1).outputs())
        assert collect(_ask(engine, 1).outputs()).token_ids == before
        assert engine.counters()["slots_held"] == 0
