"""The programs benchmark: its workloads, what its wrappers take away, and what it tells."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

import pytest

from benchmarks.program_ablation import (
    CONFIGURATIONS,
    PARTS,
    Configuration,
    NoHintBackend,
    asks_for_nothing,
    open_engine,
)
from benchmarks.program_effects import effects_of, row_of, summarise
from benchmarks.program_lanes import REFERENCE, Run
from benchmarks.program_model import program_llava
from benchmarks.program_plot import plot
from benchmarks.program_workloads import WORKLOADS, workloads
from benchmarks.programs import open_lanes
from mmserve.engine import Engine
from mmserve.lang import ClientBackend
from mmserve.testing.fake_client import FakeClient

HINTING = ("clip_questions", "documents", "tree_of_thought")
"""Workloads with forks whose prefix no call has computed yet."""


def run(work, backend) -> list[list[str]]:
    """What every program of a workload returns."""
    states = work.program.run_batch(
        list(work.rows), backend=backend, on_error="raise", **work.values
    )
    return [state.ret_value for state in states]


def num_hints(client: FakeClient) -> int:
    """Calls that asked for nothing at all."""
    return sum(map(asks_for_nothing, client.requests))


def timed(seconds, prompt_computed=100, prompt_cached=0) -> Run:
    """A run with one answer."""
    return Run(seconds, prompt_computed, prompt_cached, 10, (("yes",),))


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_runs_and_is_the_same_again(name):
    """Its programs end without a failure, and a second making gives the same answers."""
    answers = []
    for _ in range(2):
        work = workloads((name,), 1)[0]
        answers.append(run(work, ClientBackend(FakeClient())))
    assert answers[0] == answers[1]
    assert all(isinstance(text, str) and text for row in answers[0] for text in row)


def test_size_multiplies_rows():
    """A workload twice as large has twice as many programs."""
    small, large = workloads(WORKLOADS, 2), workloads(WORKLOADS, 4)
    assert all(
        2 * one.num_programs == two.num_programs for one, two in zip(small, large, strict=True)
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_without_hints_forks_make_no_call(name):
    """Calls for nothing are left out, but for prompts of choices; other calls are the same."""
    work = workloads((name,), 1)[0]
    full, without = FakeClient(), FakeClient()
    assert run(work, ClientBackend(full)) == run(work, NoHintBackend(without))
    assert (num_hints(full) > num_hints(without)) == (name in HINTING)
    calls, others = (
        Counter((r.parts, r.sampling) for r in client.requests if not asks_for_nothing(r))
        for client in (full, without)
    )
    assert calls == others


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """The benchmark's checkpoint, but small."""
    return program_llava(tmp_path_factory.mktemp("model"), width=64, depth=2)


def cached_tokens(engine: Engine, token_ids, max_new_tokens=1) -> tuple[int, list[int]]:
    """How much of a prompt was reused, and the prompt with its answer."""
    params = {"max_new_tokens": max_new_tokens, "temperature": 0.0, "ignore_eos": True}
    answer = engine.generate(token_ids, sampling_params=params)
    return answer.usage.cached_tokens, [*token_ids, *answer.token_ids[0]]


@pytest.mark.parametrize("has_tree", [True, False])
def test_a_flat_table_hits_only_where_a_prompt_or_answer_ended(directory, has_tree):
    """Whole earlier sequences are reused as with the tree, beginnings of them are not."""
    configuration = Configuration(name="", has_tree=has_tree, num_slots=1024)
    engine, _ = open_engine(str(directory), configuration, threads=1, verify_steps=True)
    first, other = list(range(300, 340)), list(range(400, 420))
    with engine:
        assert cached_tokens(engine, first)[0] == 0
        assert cached_tokens(engine, first)[0] == 39
        num_cached, whole = cached_tokens(engine, [*first, *other], 4)
        assert num_cached == 40
        assert cached_tokens(engine, [*whole, *other])[0] == 63
        assert cached_tokens(engine, [*first, 500])[0] == 40
        assert cached_tokens(engine, [*first[:30], *other])[0] == (30 if has_tree else 0)
        assert cached_tokens(engine, [*first, *other[:9], 500])[0] == (49 if has_tree else 40)
        assert engine.flush_cache(10.0)
        assert cached_tokens(engine, first)[0] == 0


def test_whatever_is_taken_away_answers_stay_those_of_transformers(directory):
    """All configurations give the same texts; only how much is computed differs."""
    with ExitStack() as stack:
        lanes = open_lanes(directory, CONFIGURATIONS, stack)
        for work in workloads(("clip_questions", "documents", "json", "judge"), 1):
            runs = {lane.name: lane.run(work) for lane in lanes}
            assert {
                name for name, r in runs.items() if r.answers != runs["full"].answers
            } == set()
            assert runs["no_cache"].prompt_cached == runs[REFERENCE].prompt_cached == 0
            assert runs["no_cache"].prompt_computed == runs[REFERENCE].prompt_computed
            assert runs["full"].prompt_computed <= runs["no_tree"].prompt_computed
            assert runs["full"].prompt_computed < runs["no_cache"].prompt_computed
            assert runs["full"].generated == runs[REFERENCE].generated


def test_parts_name_configurations():
    """Every part is the difference of two configurations that are run."""
    names = {configuration.name for configuration in CONFIGURATIONS}
    assert {name for pair in PARTS.values() for name in pair} == names


def test_an_effect_is_nil_when_rounds_disagree():
    """Faster in all rounds is faster, sometimes faster is nil, and one round is unsure."""
    runs = {
        "full": {0: timed(1.0), 1: timed(1.0), 2: timed(1.0)},
        "no_cache": {0: timed(4.0, 300), 2: timed(2.0, 300)},
        "no_tree": {0: timed(1.4), 1: timed(0.9), 2: timed(1.3)},
        "fcfs": {0: timed(0.5), 1: timed(0.8), 2: timed(0.7)},
        "random": {0: timed(5.0)},
    }
    found = {effect["part"]: effect for effect in effects_of("chat_short", runs)}
    words = {part: effect["effect"] for part, effect in found.items()}
    assert words == {
        "cache": "faster",
        "tree": "nil",
        "order_over_fcfs": "slower",
        "order_over_random": "unsure",
    }
    assert found["cache"]["speed"] == 3.0
    assert found["cache"]["tokens_saved"] == pytest.approx(1 - 110 / 310)


def test_the_summary_tells_the_worst_workload():
    """`min_speedup_vs_transformers` is of programs per second, of the worst workload."""
    rows, effects = [], []
    for work, slow_s in zip(workloads(("json", "react"), 1), (6.0, 3.0), strict=True):
        runs = {
            "full": {0: timed(1.0)},
            "no_cache": {0: timed(2.0)},
            REFERENCE: {0: timed(slow_s)},
        }
        rows += [row_of(work, name, done, (("no",),)) for name, done in runs.items()]
        effects += effects_of(work.name, runs)
    summary = summarise(rows, effects)
    assert summary["min_speedup_vs_transformers"] == 3.0
    assert summary["max_speedup_vs_transformers"] == 6.0
    assert summary["answers_unlike_transformers"] == 2
    assert summary["cache_speed"] == pytest.approx(2.0)


def test_a_plot_shows_speed_and_tokens(tmp_path):
    """The picture is an SVG with a panel for each."""
    pytest.importorskip("matplotlib")
    rows = [
        {"workload": "json", "configuration": name, "programs_per_s": 2.0, "tokens_computed": 9}
        for name in ("full", "no_cache", REFERENCE)
    ]
    plot(rows, tmp_path / "programs.svg")
    assert (tmp_path / "programs.svg").read_text().count('<g id="axes_') == 2
