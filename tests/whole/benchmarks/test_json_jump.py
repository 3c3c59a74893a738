"""The benchmark of jumps: its records, its runs, and what it tells."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest

from benchmarks.character import CONSTRAINTS, NAMES, REGEX, SCHEMA, is_valid, requests
from benchmarks.json_jump import LANES, Size, measure, summarise
from benchmarks.json_jump_plot import plot
from mmserve.core import ImagePart

RECORD = {
    "name": "Ada Stone",
    "house": "Otter",
    "age": 31,
    "occupation": "keeper of the lamp",
    "boat": {"wood": "oak", "sail": "red", "length": 9},
    "alive": True,
    "greatest fear": "deep water",
    "secret wish": "to fly",
}
FIXED = ("speedup_regex", "speedup_schema", "forced_share")


def row(**values):
    """A row as `compare` gives it."""
    plain = {
        "model": "m",
        "picture": False,
        "kind": "regex",
        "batch": 1,
        "answers": 2,
        "speedup": 2.0,
        "tokens": 100,
        "forced_tokens": 60,
        "steps": 40.0,
        "steps_without": 80.0,
        "reuse_gain": 1.5,
        "different": 0,
        "invalid": 0,
    }
    return plain | values


def test_both_constraints_ask_for_the_same_record():
    """Indented it is of the regex, compact it has the schema's form, and both are valid."""
    indented, compact = json.dumps(RECORD, indent=4), json.dumps(RECORD)
    assert re.fullmatch(REGEX, indented)
    jsonschema.validate(RECORD, SCHEMA)
    assert is_valid("regex", indented)
    assert is_valid("schema", compact)
    assert not is_valid("regex", compact)


@pytest.mark.parametrize(
    "change",
    [
        {"house": "Wolf"},
        {"age": 0},
        {"name": "a name that is much too long"},
        {"alive": "yes"},
        {"boat": {"wood": "oak", "sail": "red"}},
        {"more": 1},
    ],
)
def test_a_wrong_value_is_invalid_by_either(change):
    """A record with one value that neither constraint admits."""
    wrong = RECORD | change
    assert not is_valid("regex", json.dumps(wrong, indent=4))
    assert not is_valid("schema", json.dumps(wrong))


def test_what_is_no_json_is_invalid():
    """An answer that was cut off."""
    assert not is_valid("schema", json.dumps(RECORD)[:-1])


def test_requests_differ_by_name_and_picture():
    """No two requests ask the same, and with pictures no two show the same."""
    made = requests("regex", len(NAMES), has_picture=True)
    turns = [request.parts[0] for request in made]
    assert len({turn.parts[1].text for turn in turns}) == len(NAMES)
    assert all(isinstance(turn.parts[0], ImagePart) for turn in turns)
    assert len({turn.parts[0].source.content for turn in turns}) == len(NAMES)
    assert {request.sampling.constraint for request in made} == {CONSTRAINTS["regex"]}


def test_the_summary_is_the_geometric_mean_of_variants():
    """Each variant counts alike for speed, each token alike for the share that is forced."""
    rows = [
        row(speedup=4.0, tokens=300, forced_tokens=300, different=1),
        row(speedup=1.0, batch=16, forced_tokens=20),
        row(kind="schema", speedup=1.5, invalid=1),
    ]
    summary = summarise(rows)
    assert summary["speedup_regex"] == pytest.approx(2.0)
    assert summary["speedup_schema"] == pytest.approx(1.5)
    assert summary["forced_share"] == pytest.approx(380 / 500)
    assert summary["steps_saved"] == pytest.approx(0.5)
    assert (summary["num_answers"], summary["num_different"], summary["num_invalid"]) == (
        6,
        1,
        1,
    )


@pytest.mark.slow
def test_a_run_tells_of_every_variant():
    """Pictures or none, regex and schema, by batch; all answers are valid."""
    record = measure(("tabletop",), Size({2: 2}, 1), threads=1)
    variants = {(one["picture"], one["kind"], one["batch"]) for one in record.rows}
    assert len(variants) == len(record.rows) == 4
    assert [name for name in FIXED if name not in record.summary] == []
    assert record.summary["num_invalid"] == 0
    assert record.summary["num_answers"] == 4 * 2
    assert 0 < record.summary["forced_share"] < 1
    assert 0 < record.summary["steps_saved"] < 1
    assert all(one["steps"] < one["steps_without"] for one in record.rows)


def test_lanes_differ_in_what_they_name():
    """Jumping is turned off in one lane only, and so is keeping grammars."""
    jumps = {lane: values["sched"].jump_forward for lane, values in LANES.items()}
    assert jumps == {"jump": True, "no jump": False, "no reuse": True}
    assert [lane for lane, values in LANES.items() if "grammar_cache_bytes" in values] == [
        "no reuse"
    ]


def test_a_plot_shows_speed_and_steps(tmp_path):
    """The picture is an SVG with a panel for each."""
    pytest.importorskip("matplotlib")
    rows = [row(kind=kind, batch=batch) for kind in ("regex", "schema") for batch in (1, 16)]
    plot(rows, tmp_path / "json_jump.svg")
    assert (tmp_path / "json_jump.svg").read_text().count('<g id="axes_') == 2
