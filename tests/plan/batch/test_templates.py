"""Questions made by a template."""

import json
import time
from pathlib import Path

import pytest

from mmserve.batch import AskSettings, Row, RowFault, Rows, RowSettings
from mmserve.core import BadRequest

ROW = {"video": "a.mp4"}


def read(place: Path, row: dict, **settings: object) -> Row | RowFault:
    """The row, read under these settings."""
    path = place / "in.jsonl"
    path.write_text(json.dumps(ROW | row))
    rows = Rows(path, RowSettings(**settings))
    return next(rows.parse(raw) for raw in rows)


def refused(place: Path, **settings: object) -> str:
    """Why these settings are refused before any row is read."""
    with pytest.raises(BadRequest) as caught:
        read(place, {}, **settings)
    return str(caught.value)


def test_a_template_makes_the_question_of_a_row(tmp_path):
    """Fields that the template names are permitted, and no question is needed."""
    row = read(
        tmp_path,
        {"thing": "ball", "tags": ["a", "b"]},
        template="Is a {{ thing }} there? ({{ tags | join('+') }}, {{ video }})",
    )
    assert row.questions == ("Is a ball there? (a+b, a.mp4)",)


@pytest.mark.parametrize("name", ["questions", "turns"])
def test_a_template_frames_each_question(tmp_path, name):
    """A template that uses `question` is filled in for each of them."""
    row = read(tmp_path, {name: ["Who?", "Where?"]}, template="{{ question }} Be brief.")
    assert row.questions == ("Who? Be brief.", "Where? Be brief.")
    assert row.is_conversation == (name == "turns")


def test_a_field_may_be_optional(tmp_path):
    """A template may say what stands for a field that is absent or null."""
    template = "{{ question }}{% if hint is defined %} ({{ hint }}){% endif %}"
    assert read(tmp_path, {"question": "Q?"}, template=template).questions == ("Q?",)
    assert read(tmp_path, {"question": "Q?", "hint": None}, template=template).questions == (
        "Q?",
    )


@pytest.mark.parametrize(
    ("row", "template", "part"),
    [
        ({}, "Is {{ thing }}?", 'line 1: field "thing" is missing, the template uses it'),
        ({"thing": None}, "Is {{ thing }}?", 'field "thing" is missing'),
        ({"a": {}}, "{{ a.b }}", "the template fails: 'dict object' has no attribute 'b'"),
        ({"a": ""}, "{{ a }}", "the question that the template makes is empty"),
        ({}, "{{ question }}", "question is missing, give question or questions"),
        ({"question": "Q?"}, "Who?", "question is given, but the template asks without it"),
        ({"mood": 1}, "{{ video }}", 'unknown field "mood"; known are id, '),
        ({"a": 0}, "{{ 1 // a }}", "the template fails: "),
    ],
)
def test_a_row_that_the_template_cannot_use_is_a_fault(tmp_path, row, template, part):
    """What the template cannot make of a row is told, with the field."""
    fault = read(tmp_path, row, template=template)
    assert isinstance(fault, RowFault)
    assert part in fault.message


@pytest.mark.parametrize(
    ("template", "part"),
    [
        ("a\n\n{% for %}", "does not compile, line 3: Expected an expression"),
        ("{{ a | nothing }}", "line 1: No filter named 'nothing'"),
        ("{{ a | random }}", "No filter named 'random'"),
        ("{% include 'a' %}", "it loads another template"),
    ],
)
def test_a_template_that_does_not_compile_is_refused(tmp_path, template, part):
    """A faulty template ends the run before it begins, with its line."""
    assert part in refused(tmp_path, template=template)


@pytest.mark.parametrize(
    ("template", "part"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "loops turn more than 100,000 times",
        ),
        (
            "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
            "{{ f(60) }}",
            "loops turn more than 100,000 times",
        ),
        (
            "{% set n = namespace(x='xx') %}{% for i in range(60) %}"
            "{% set n.x = n.x ~ n.x %}{% endfor %}",
            "a value is larger than 1,048,576",
        ),
        ("{{ range(10 ** 9) }}", "Range too big"),
        ("{{ 'x' * 10 ** 9 }}", "a text is repeated"),
        ("{{ 9 ** 999 }}", "a power is too large"),
        (
            "{% for i in range(90000) %}xxxxxxxxxxxxxxxxxx{% endfor %}",
            "the template's text is longer than 1,048,576 bytes",
        ),
        ("{{ ''.__class__.__mro__ }}", "is unsafe"),
        ("{{ tags.append(1) }}", "access to attribute 'append'"),
    ],
)
def test_a_template_is_bounded(tmp_path, template, part):
    """No template runs for long, makes much, or leaves its sandbox."""
    began_s = time.monotonic()
    assert part in read(tmp_path, {"tags": []}, template=template + "{{ tags }}").message
    assert time.monotonic() - began_s < 5


def test_questions_are_asked_of_rows_that_have_none(tmp_path):
    """Questions of the settings stand in for those of a silent row only."""
    assert read(tmp_path, {}, questions=("A?", "B?")).questions == ("A?", "B?")
    assert read(tmp_path, {"question": "Q?"}, questions=("A?",)).questions == ("Q?",)
    framed = read(tmp_path, {}, questions=("A?",), template="{{ question }}!")
    assert framed.questions == ("A?!",)


def test_questions_that_no_row_would_be_asked_are_refused(tmp_path):
    """Questions of the settings and a template without `question` contradict each other."""
    text = refused(tmp_path, questions=("A?",), template="Who?")
    assert "the template asks without them" in text


def test_other_fields_are_left_alone_if_asked(tmp_path):
    """With extra_fields=ignore, an unknown field is no fault; a wrong one still is."""
    more = {"question": "Q?", "mood": 1}
    assert read(tmp_path, more, extra_fields="ignore").questions == ("Q?",)
    fault = read(tmp_path, more | {"fps": 0}, extra_fields="ignore")
    assert fault.message == "line 1: fps is 0, must be above 0"


def test_several_greedy_answers_are_refused(tmp_path):
    """`num_samples` of the settings needs a temperature, theirs or the row's."""
    assert "temperature 0 would all be the same" in refused(tmp_path, num_samples=3)
    path = tmp_path / "in.jsonl"
    path.write_text(json.dumps(ROW | {"question": "Q?"}))
    rows = Rows(path, RowSettings(num_samples=3), AskSettings(temperature=1.0))
    assert [rows.parse(raw).num_samples for raw in rows] == [3]
