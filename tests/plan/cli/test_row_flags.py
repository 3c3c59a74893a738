"""Flags about the rows of a batch file."""

import pytest

from mmserve.batch import RowSettings
from mmserve.cli.row_flags import RowFlags
from mmserve.core import BadRequest


def test_files_are_read_into_the_settings(tmp_path):
    """A template and questions of files become part of the settings, as plain values."""
    (tmp_path / "t.jinja").write_bytes(b"\xef\xbb\xbf{{ question }}?\n")
    (tmp_path / "q.txt").write_text("Who\n\n  Where  \r\n")
    flags = RowFlags(template=f"@{tmp_path / 't.jinja'}", question_file=str(tmp_path / "q.txt"))
    expected = RowSettings(template="{{ question }}?\n", questions=("Who", "Where"))
    assert flags.settings() == expected


def test_a_question_file_may_be_a_json_list(tmp_path):
    """So a question may have several lines."""
    (tmp_path / "q.json").write_text('["Who\\nis it?", "Where?"]')
    flags = RowFlags(question_file=str(tmp_path / "q.json"))
    assert flags.settings().questions == ("Who\nis it?", "Where?")


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"\n \n", "holds no question"),
        (b"[]", "holds no question"),
        (b'["Who?", 1]', "an entry is no text"),
        (b'["Who?"', "begins like a JSON list, but"),
        (b'["Who?", " "]', "question 1 is empty"),
        (b"\xff", "not UTF-8 at byte 1"),
    ],
)
def test_a_file_without_questions_is_refused(tmp_path, content, part):
    """A question file that holds something else is told why."""
    (tmp_path / "q").write_bytes(content)
    with pytest.raises(BadRequest, match=part):
        RowFlags(question_file=str(tmp_path / "q")).settings()


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        ({"template": "@/nowhere/t"}, "template /nowhere/t: No such file"),
        ({"question": ("",)}, "question 0 is empty"),
        ({"question": ("a",), "question_file": "b"}, "are both given"),
    ],
)
def test_flags_that_cannot_be_meant_are_refused(flags, part):
    """A missing file, an empty question, two ways at once."""
    with pytest.raises(BadRequest, match=part):
        RowFlags(**flags).settings()
