"""The benchmark of what constraints cost: its cases, walks, workers and summary."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from random import Random

import jsonschema
import pytest

from benchmarks import constraint_others
from benchmarks.constrained_batch import LOOSE, measure_batch
from benchmarks.constrained_cost import (
    Size,
    compile_row,
    mask_rows,
    measure,
    measure_other,
    summarise,
)
from benchmarks.constraint_cases import Case, mask_cases, own_schemas, read_schemas
from benchmarks.constraint_others import OTHERS, OtherEngine
from benchmarks.constraint_walks import OURS, Timed, Tokens, Walk, time_case
from mmserve.core import Constraint

FIXED = (
    "mask_p50_us",
    "mask_p99_us",
    "compile_p50_ms",
    "compile_p99_ms",
    "step_rate_ratio",
)

WORKER = """
import json, sys, time
print(json.dumps({"version": "1.2"}) if json.loads(sys.stdin.readline())["pieces"] else "")
sys.stdout.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["value"] == "hang":
        time.sleep(60)
    if asked["value"] == "die":
        sys.exit(3)
    if asked["value"] == "refuse":
        print(json.dumps({"error": "ValueError: no"}), flush=True)
        continue
    walks = [{"mask_us": [2.0], "accept_us": [1.0]} for _ in asked["walks"]]
    times = {"compile_ms": 3.0, "processor_ms": 4.0, "first_mask_ms": 0.1}
    print(json.dumps({**times, "walks": walks}), flush=True)
"""


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    """The vocabulary of the embedded model."""
    return Tokens("tabletop")


@pytest.fixture
def other(tokens, tmp_path, monkeypatch):
    """An engine whose worker is a small script."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(constraint_others, "_SCRIPT", script)
    with OtherEngine(sys.executable, "made-up", tokens, limit_s=5.0) as engine:
        yield engine


def case(value, kind="regex") -> Case:
    """A constraint named as its value."""
    return Case(value, Constraint(kind, value))


def test_cases_are_of_all_kinds_and_have_names_of_their_own():
    """Patterns, options and schemas; over a dozen schemas' worth of compiling."""
    made = mask_cases()
    names = [(one.constraint.kind, one.name) for one in made]
    assert len(set(names)) == len(names)
    assert {kind for kind, _ in names} == {"regex", "choices", "json_schema"}
    assert len(own_schemas()) >= 12
    for one in own_schemas():
        jsonschema.validators.validator_for({}).check_schema(json.loads(one.constraint.value))


def test_schemas_come_from_a_file(tmp_path):
    """Each line is a schema with a name; every second one, if that is asked for; shuffled."""
    path = tmp_path / "schemas.jsonl"
    lines = [json.dumps({"id": f"s{k}", "schema": {"const": k}}) for k in range(5)]
    path.write_text("\n".join(lines) + "\n")
    found = {one.name: one.constraint for one in read_schemas(path)}
    assert found == {f"s{k}": Constraint("json_schema", f'{{"const": {k}}}') for k in range(5)}
    assert {one.name for one in read_schemas(path, 2)} == {"s0", "s2", "s4"}
    assert read_schemas(path) == read_schemas(path)


def test_walks_are_answers(tokens):
    """What a walk under a pattern without an open end spells matches that pattern."""
    pattern = "(ab|cd){2}x?"
    timed, walks = time_case(tokens.compiler(), tokens, case(pattern), 4)
    texts = [b"".join(tokens.pieces[one] for one in walk).decode() for walk in walks]
    assert len(texts) == 4
    assert all(re.fullmatch(pattern, text) for text in texts)
    for walk, token_ids in zip(timed.walks, walks, strict=True):
        assert len(walk.mask_us) == len(walk.accept_us) == len(walk.jump_us) == len(token_ids)
    again = time_case(tokens.compiler(), tokens, case(pattern), 4)[1]
    assert walks == again


def test_a_refused_constraint_is_told_with_its_reason(tokens):
    """It has no times, and counts as refused."""
    timed, walks = time_case(tokens.compiler(), tokens, case("(a"), 2)
    assert walks == []
    assert timed.refusal
    row = compile_row(OURS, [timed, Timed("b", "regex", compile_ms=2.0)], 9)
    assert (row["constraints"], row["tried"], row["refused"]) == (9, 2, 1)
    assert row["compile_p50_ms"] == 2.0


def test_mask_rows_tell_each_kind_and_all():
    """The first answer of a constraint is told apart, as the cold one."""
    walks = [Walk([1], [9.0], [1.0], [1.0]), Walk([1], [3.0], [1.0], [1.0], is_stuck=True)]
    timed = [Timed("a", "regex", walks=walks), Timed("b", "choices", refusal="no")]
    rows = {row["kind"]: row for row in mask_rows(OURS, timed)}
    assert list(rows) == ["regex", "choices", "all"]
    assert (rows["all"]["masks"], rows["all"]["stuck"], rows["all"]["refused"]) == (2, 1, 1)
    assert (rows["regex"]["mask_p50_us"], rows["regex"]["cold_mask_p50_us"]) == (6.0, 9.0)
    assert "mask_p50_us" not in rows["choices"]


def test_another_engine_answers_through_its_worker(other):
    """Times of what it took, up to where it disagreed; its refusals are told."""
    assert other.version == "1.2"
    timed = other.time_case(case("a+"), [[5], [5, 6]])
    assert (timed.compile_ms, timed.processor_ms, timed.first_mask_ms) == (3.0, 4.0, 0.1)
    assert timed.refusal is None
    assert [(walk.token_ids, walk.is_stuck) for walk in timed.walks] == [
        ([5], False),
        ([5], True),
    ]
    assert other.time_case(case("refuse"), []).refusal == "ValueError: no"


def test_a_worker_that_dies_is_started_again(other):
    """Its constraint counts as refused, and the next one is asked of a new worker."""
    timed, compiled = measure_other(
        other, [case("die"), case("a")], [[], [[5]]], [case("die"), case("b")], budget_s=60.0
    )
    assert [one.refusal is None for one in (*timed, *compiled)] == [False, True, False, True]
    assert measure_other(other, [], [], [case("a")], budget_s=-1.0) == ([], [])


def test_a_worker_that_takes_too_long_is_ended(tokens, other):
    """A constraint over the limit counts as refused."""
    other._limit_s = 0.2
    assert other.time_case(case("hang"), []).refusal == "over 0.2 s"
    other._limit_s = 5.0
    assert other.time_case(case("a"), []).refusal is None


@pytest.mark.parametrize("name", OTHERS)
def test_the_worker_says_so_if_an_engine_is_absent(tokens, name):
    """An environment without the engine is an error at the start, not a row of refusals."""
    if importlib.util.find_spec(name.replace("-", "_")):
        pytest.skip("it is installed here")
    with pytest.raises(RuntimeError, match="does not start"):
        OtherEngine(sys.executable, name, tokens, limit_s=5.0)


def test_loose_grammars_force_nothing_and_end_nothing():
    """Batches under them make as many tokens as the free one, none of them forced."""
    rows = measure_batch("tabletop", num_rows=3, num_tokens=8, repeats=1, threads=1)
    assert {row["grammar"] for row in rows} == set(LOOSE)
    assert {row["tokens"] for row in rows} == {row["tokens_free"] for row in rows} == {24}
    assert {row["forced_tokens"] for row in rows} == {0}
    assert all(row["step_rate_ratio"] > 0 for row in rows)


def test_a_run_tells_every_cost(tokens):
    """All fixed keys are in the summary; no engine but ours, nothing refused."""
    size = Size(num_walks=1, num_tokens=2, repeats=1)
    record = measure(tokens, size, models=("tabletop",), threads=1)
    assert [name for name in FIXED if name not in record.summary] == []
    assert list(record.engines) == [OURS]
    assert record.refused == {OURS: {}}
    assert {row["table"] for row in record.rows} == {"masks", "compile", "slowest", "batch"}


def test_the_summary_tells_the_lowest_step_rate():
    """Of all models and grammars; the mean of each model is told too."""
    chance = Random(1)
    ratios = [chance.uniform(0.5, 1.0) for _ in range(4)]
    rows = [
        {"table": "batch", "model": model, "step_rate_ratio": ratio}
        for model, ratio in zip("aabb", ratios, strict=True)
    ]
    summary = summarise(rows, "ab")
    assert summary["step_rate_ratio"] == min(ratios)
    assert summary["mean_step_rate_ratio_a"] == pytest.approx((ratios[0] * ratios[1]) ** 0.5)
