"""Lines of a batch file."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.batch import Row, RowFault, Rows, numbered_lines, parse_row
from mmserve.core import BadRequest, Constraint

GOOD = {"video": "a.mp4", "question": "What?"}


def read(**fields: object) -> Row | RowFault:
    """The row of `GOOD` with other fields; a field that is ... is left out."""
    merged = {k: v for k, v in (GOOD | fields).items() if v is not ...}
    return parse_row(3, json.dumps(merged).encode())


def message(row: Row | RowFault) -> str:
    """What is wrong with it."""
    assert isinstance(row, RowFault)
    return row.message


def test_a_full_row_is_read():
    """Every field of a video row arrives with its value."""
    row = read(
        id="r1",
        question=...,
        questions=["What?", "Who?"],
        num_frames=4,
        fps=2,
        start_s=0,
        end_s=1.5,
        max_tokens=9,
        regex="[ab]",
        system="Be brief.",
        n=3,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        seed=-1,
    )
    assert row == Row(
        line=3,
        row_id="r1",
        questions=("What?", "Who?"),
        video="a.mp4",
        num_frames=4,
        fps=2.0,
        start_s=0.0,
        end_s=1.5,
        max_tokens=9,
        constraint=Constraint("regex", "[ab]"),
        system="Be brief.",
        num_samples=3,
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        seed=-1,
    )


def test_a_row_without_id_is_named_after_its_line():
    """A missing id becomes a stable generated one."""
    assert read().row_id == "line-3"


@pytest.mark.parametrize("row_id", ["a", 5, 0, -1])
def test_ids_are_texts_or_whole_numbers(row_id):
    """An id comes back as it was given."""
    assert read(id=row_id).row_id == row_id


def test_images_in_place_of_video():
    """A row may be about pictures."""
    row = read(video=..., images=["a.png", "b.png"])
    assert (row.video, row.images) == (None, ("a.png", "b.png"))


def test_turns_are_a_conversation():
    """Turns are questions of one conversation."""
    row = read(question=..., turns=["Who?", "And where?"])
    assert (row.questions, row.is_conversation) == (("Who?", "And where?"), True)


def test_null_is_the_same_as_absent():
    """Optional fields that are null do not count."""
    assert read(images=None, questions=None, fps=None, regex=None) == read()


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("choices", ["yes", "né"], Constraint("choices", '["yes", "né"]')),
        ("ebnf", 'root ::= "a"', Constraint("ebnf", 'root ::= "a"')),
        ("json_schema", {"type": "null"}, Constraint("json_schema", '{"type": "null"}')),
    ],
)
def test_constraints_are_the_cores(kind, value, expected):
    """Options and schemas become JSON text."""
    assert read(**{kind: value}).constraint == expected


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"id": None}, "id must be a text or a whole number, not null"),
        ({"id": True}, "id must be"),
        ({"id": 1.5}, "id must be"),
        ({"id": ""}, "id is empty"),
        ({"question": 12}, "question must be a text, not 12"),
        ({"question": "  "}, "question is empty"),
        ({"question": ...}, "question is missing, give question or questions"),
        ({"questions": ["x"]}, "question and questions are both given"),
        ({"question": ..., "questions": "x"}, "questions must be a list"),
        ({"question": ..., "questions": []}, "questions is an empty list"),
        ({"question": ..., "questions": ["a", 1]}, "questions entry 1 must be a text, not 1"),
        ({"video": ["x"]}, 'video must be a text, not ["x"]'),
        ({"video": ...}, "video is missing, give video or images"),
        ({"video": "a\0b"}, "video holds a NUL character"),
        ({"images": ["x"]}, "video and images are both given"),
        ({"num_frames": 0}, "num_frames is 0, allowed is 1 to"),
        ({"num_frames": 2.0}, "num_frames must be a whole number, not 2.0"),
        ({"num_frames": True}, "num_frames must be a whole number, not true"),
        ({"max_tokens": "9"}, 'max_tokens must be a whole number, not "9"'),
        ({"fps": 0}, "fps is 0, must be above 0"),
        ({"fps": 10**400}, "fps is 1000"),
        ({"start_s": -1}, "start_s is -1, must be 0 or more"),
        ({"start_s": 2, "end_s": 2}, "end_s is 2, must be after start_s"),
        ({"video": ..., "images": ["x"], "fps": 1}, "fps is for a video"),
        ({"regex": "a", "choices": ["b"]}, "regex and choices are both given"),
        ({"choices": ["b", "b"]}, "choices names an option twice"),
        ({"turns": ["x"]}, "question and turns are both given, give one of them"),
        ({"question": ..., "turns": "x"}, 'turns must be a list, not "x"'),
        ({"system": ""}, "system is empty"),
        ({"n": 0}, "n is 0, allowed is 1 to 128"),
        ({"n": 129, "temperature": 1}, "n is 129, allowed is 1 to 128"),
        ({"n": 2.0}, "n must be a whole number, not 2.0"),
        ({"n": 2}, "n is 2 and temperature is 0, all answers would be the same: give a temp"),
        ({"n": 2, "temperature": 0}, "n is 2 and temperature is 0"),
        (
            {"n": 2, "temperature": 1, "question": ..., "turns": ["x"]},
            "n is 2 and turns is given",
        ),
        ({"temperature": -1}, "temperature is -1, allowed is 0 to 100"),
        ({"top_p": 0}, "top_p is 0, allowed is 1e-09 to 1"),
        ({"top_k": 0}, "top_k is 0, allowed is -1 (off) or 1 and more"),
        ({"top_k": -2}, "top_k is -2, allowed is -1 to"),
        ({"seed": 2**64}, "which does not fit in 64 bits"),
        ({"seed": "1"}, 'seed must be a whole number, not "1"'),
        ({"json_schema": "{}"}, "json_schema must be a JSON schema"),
        ({"max_token": 3}, 'unknown field "max_token"'),
        ({"question": "\ud800"}, "question holds half of a surrogate pair at character 1"),
    ],
)
def test_a_fault_names_the_field(fields, part):
    """A wrong field is named, with its value and what is allowed."""
    assert part in message(read(**fields))


def test_all_faults_of_a_row_are_told_at_once():
    """A row with two wrong fields names both, and is no missing field."""
    text = message(read(id=5, question=12, video=["x"]))
    assert "question must" in text
    assert "video must" in text
    assert "missing" not in text


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b'{"video": "a.mp4", ', "line 3: not JSON: "),
        (b'{"video": "a.mp4",}', "line 3: not JSON: "),
        (b"[1,2,3]", "question, not [1, 2, 3]"),
        (b'"hello"', 'question, not "hello"'),
        (b"null", "question, not null"),
        (b"7", "question, not 7"),
        (b"{}", "question is missing"),
        (b'{"fps": NaN}', "NaN is no JSON number"),
        (b'{"fps": 1, "fps": 2}', 'field "fps" is given twice'),
        (b'{"id": "\xff"}', "not UTF-8 at byte 9"),
        (b'{"id": ' + b"9" * 5000 + b"}", "too many digits"),
        (b"[" * 100_000, "nested too deep"),
    ],
)
def test_a_line_that_is_no_row_says_why(content, part):
    """Broken lines give a fault with their own line number."""
    assert part in message(parse_row(3, content))


def test_a_fault_keeps_id_and_questions():
    """A row with a wrong setting still has its id and one record a question."""
    fault = read(id="x", question=..., questions=["a", "b"], fps=-1)
    assert (fault.row_id, fault.questions) == ("x", ("a", "b"))


def test_an_unreadable_line_has_one_record():
    """A line without readable questions stands for one unknown question."""
    assert parse_row(4, b"{").questions == (None,)


def test_long_values_are_cut_in_messages():
    """A message never echoes a large value."""
    assert len(message(read(question=["x" * 100_000]))) < 200


def test_blank_lines_count_but_are_skipped(tmp_path: Path):
    """Line numbers are the file's; blank lines, CRLF and a byte-order mark do not disturb."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\xef\xbb\xbf{}\r\n\r\n  \n[]\n7")
    assert list(numbered_lines(path)) == [(1, b"{}"), (4, b"[]"), (5, b"7")]


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (
            b'[\n  {"video": "a.mp4", "question": "q"}\n]\n',
            "is one JSON list, not a row a line",
        ),
        (b"PK\x03\x04....", "is a zip archive or a workbook, not jsonl"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content, part):
    """What is plainly no file of rows is refused at once, with its name and a way out."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=rf"in\.jsonl {part}.*hint: "):
        Rows(path)


@settings(max_examples=60, deadline=None)
@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["id", "video", "question", "fps", "x"]), inner, max_size=4
            )
        ),
        max_leaves=8,
    ).map(lambda value: json.dumps(value).encode())
)
def test_any_line_gives_a_row_or_a_fault(content):
    """No line raises, and whatever comes back has a question to write a record for."""
    assert len(parse_row(1, content).questions) >= 1
