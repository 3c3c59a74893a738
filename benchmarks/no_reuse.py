"""Where the time goes when nothing is shared: the model's arithmetic, and everything else.

Prompts of SmolLM2-135M with lengths as in ShareGPT and no two tokens in common at their start,
all handed over at once. In the loop's own thread every call of the scheduler (which owns the
tree), every step of the runner, and inside it every call of the decoder is timed:

    wall | decoder: embeddings, layers with their attention, logits    the model's arithmetic
         | rest of the runner: layout of the step, sampling
         | scheduler and tree
         | rest: inbox, text of answers, waiting for the first prompt

What is not in the first line is outside the model. Python and torch's dispatch inside a decoder
call count as arithmetic; nothing else does.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

import mmserve.runner.load as runner_load
from benchmarks.record import Record, report
from mmserve.core import EngineConfig, Request, SamplingParams, TokensPart, default_threads
from mmserve.engine import Engine, Parts, collect, load_parts

__all__ = ["Clock", "Timed", "measure", "prompts"]

_MODEL = "smollm2-135m"
_DECODER_CALLS = ("embed", "forward", "logits")
_RUNNER_CALLS = ("execute", "launch")
_STEP_CALLS = ("finish",)
_FLUSH_S = 10.0


class Clock:
    """Seconds and calls by part of the engine, of calls that do not lie in one another."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.num_calls: Counter[str] = Counter()

    def forget(self) -> None:
        """Begin again. Changes: the clock."""
        self.seconds.clear()
        self.num_calls.clear()


class Timed:
    """An object of the engine whose calls are timed; whatever is not a call passes through.

    Args:
        inner: the object.
        part: where its seconds are booked.
        names: the calls timed; None: all of them.
        result_names: calls of what `launch` returns that are timed as well.
    """

    def __init__(
        self,
        inner: object,
        part: str,
        clock: Clock,
        names: tuple[str, ...] | None = None,
        result_names: tuple[str, ...] = (),
    ) -> None:
        self._inner, self._part, self._clock, self._names = inner, part, clock, names
        self._result_names = result_names
        self._wrapped: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the object has
        wrapped = self._wrapped.get(name)
        if wrapped is not None:
            return wrapped
        found = getattr(self._inner, name)
        if not callable(found) or (self._names is not None and name not in self._names):
            return found
        self._wrapped[name] = self._timed(found, name)
        return self._wrapped[name]

    def _timed(self, call: Callable[..., Any], name: str) -> Callable[..., Any]:
        seconds, num_calls, part = self._clock.seconds, self._clock.num_calls, self._part
        result_names = self._result_names if name == "launch" else ()

        def timed(*values: Any, **named: Any) -> Any:  # noqa: ANN401 - as the call's own
            began = time.perf_counter()
            try:
                result = call(*values, **named)
            finally:
                seconds[part] += time.perf_counter() - began
                num_calls[f"{part}.{name}"] += 1
            return Timed(result, part, self._clock, result_names) if result_names else result

        return timed


@contextmanager
def _decoder_timed(clock: Clock) -> Iterator[None]:
    """While it lasts, models are loaded with a decoder whose calls are timed."""
    build = runner_load.build_model

    def build_timed(*values: Any, **named: Any) -> Any:  # noqa: ANN401 - as the function's own
        model = build(*values, **named)
        decoder: Any = Timed(model.decoder, "decoder", clock, _DECODER_CALLS)
        return replace(model, decoder=decoder)

    runner_load.build_model = build_timed  # type: ignore[assignment]
    try:
        yield
    finally:
        runner_load.build_model = build  # type: ignore[assignment]


def timed_parts(config: EngineConfig, clock: Clock) -> Parts:
    """The rooms of an engine, with decoder, runner and scheduler timed by `clock`."""
    with _decoder_timed(clock):
        parts = load_parts(config)
    scheduler: Any = Timed(parts.scheduler, "scheduler", clock)
    runner: Any = Timed(parts.runner, "runner", clock, _RUNNER_CALLS, _STEP_CALLS)
    return replace(parts, scheduler=scheduler, runner=runner)


def prompts(
    num_requests: int, longest: int, seed: int = 0
) -> list[tuple[tuple[int, ...], int]]:
    """Token ids and answer lengths, log-normal as in ShareGPT, at most `longest` each. Pure.

    The first token of each prompt is its own, so that no two share a prefix.
    """
    random = np.random.default_rng(seed)
    firsts = random.permutation(np.arange(1000, 40_000))[:num_requests]
    made = []
    for first in firsts.tolist():
        num_prompt = int(np.clip(random.lognormal(np.log(120), 1.1), 4, longest))
        num_answer = int(np.clip(random.lognormal(np.log(64), 0.9), 4, longest))
        rest = random.integers(1000, 40_000, num_prompt - 1)
        made.append(((first, *rest.tolist()), num_answer))
    return made


def _run(
    engine: Engine, asked: list[tuple[tuple[int, ...], int]], clock: Clock
) -> dict[str, Any]:
    """One round from an empty cache, as shares of its wall time."""
    if not engine.flush_cache(_FLUSH_S):
        raise RuntimeError("the engine is still busy")
    clock.forget()
    began = time.perf_counter()
    tickets = [
        engine.submit(
            Request(
                request_id=str(number),
                parts=(TokensPart(token_ids),),
                sampling=SamplingParams(
                    max_new_tokens=num_answer, temperature=0.0, ignore_eos=True
                ),
            )
        )
        for number, (token_ids, num_answer) in enumerate(asked)
    ]
    answers = [collect(ticket.outputs()) for ticket in tickets]
    wall_s = time.perf_counter() - began
    seconds = dict(clock.seconds)
    return {
        "seconds": wall_s,
        "decoder_s": seconds.get("decoder", 0.0),
        "runner_s": seconds["runner"],
        "scheduler_s": seconds["scheduler"],
        "steps": sum(clock.num_calls[f"runner.{name}"] for name in _RUNNER_CALLS),
        "prompt_tokens": sum(one.usage.prompt_tokens for one in answers),
        "cached_tokens": sum(one.usage.cached_tokens for one in answers),
        "answer_tokens": sum(one.usage.completion_tokens for one in answers),
    }


def _row(number: int, run: dict[str, Any]) -> dict[str, Any]:
    """A round as shares of its wall time. Pure."""
    wall_s = run["seconds"]
    return {
        "round": number,
        **run,
        "model_share": run["decoder_s"] / wall_s,
        "rest_of_runner_share": (run["runner_s"] - run["decoder_s"]) / wall_s,
        "tree_and_scheduler_share": run["scheduler_s"] / wall_s,
        "rest_share": (wall_s - run["runner_s"] - run["scheduler_s"]) / wall_s,
        "tokens_per_s": (run["prompt_tokens"] + run["answer_tokens"]) / wall_s,
    }


def summarise(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over rounds, and what must be nil. Pure."""

    def middle(name: str) -> float:
        return statistics.median(row[name] for row in rows)

    return {
        "outside_model_share": statistics.median(1 - row["model_share"] for row in rows),
        "outside_runner_share": statistics.median(
            1 - row["runner_s"] / row["seconds"] for row in rows
        ),
        "tree_and_scheduler_share": middle("tree_and_scheduler_share"),
        "scheduler_us_per_step": statistics.median(
            1e6 * row["scheduler_s"] / row["steps"] for row in rows
        ),
        "tokens_per_second": middle("tokens_per_s"),
        "cached_tokens": sum(row["cached_tokens"] for row in rows),
    }


def measure(num_requests: int, longest: int, repeats: int, weights: str = "full") -> Record:
    """All rounds of one engine, after one that warms up."""
    clock = Clock()
    config = EngineConfig(model=_MODEL, threads=default_threads(), weights=weights)  # type: ignore[arg-type]
    with Engine.from_parts(timed_parts(config, clock)) as engine:
        _run(engine, prompts(2, 32, seed=1), clock)
        if not clock.seconds["decoder"]:
            raise RuntimeError("the runner does not call the decoder through its port")
        asked = prompts(num_requests, longest)
        rows = [_row(number, _run(engine, asked, clock)) for number in range(repeats)]
    return Record(repeats=repeats, summary=summarise(rows), rows=rows)


def main() -> None:
    """Parse flags, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", metavar="FILE", help="write one JSON object ('-': to stdout)")
    parser.add_argument("--quick", action="store_true", help="few short requests, two rounds")
    parser.add_argument("--repeats", type=int, default=5, help="rounds")
    parser.add_argument("--weights", choices=("full", "int8", "int4"), default="full")
    flags = parser.parse_args()
    size = (8, 64, 2) if flags.quick else (48, 1024, flags.repeats)
    report(measure(*size, flags.weights), flags.json)


if __name__ == "__main__":
    main()
