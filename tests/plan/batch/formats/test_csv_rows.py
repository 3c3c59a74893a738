"""Rows of a CSV file."""

import gzip
from pathlib import Path

import pytest

from mmserve.batch import Row, RowFault, Rows, RowSettings
from mmserve.core import BadRequest, Constraint

IGNORE = RowSettings(extra_fields="ignore")


def read(place: Path, content: bytes, settings: RowSettings | None = None):
    """Every row of a CSV file that holds `content`."""
    path = place / "in.csv"
    path.write_bytes(content)
    rows = Rows(path, settings)
    return [rows.parse(raw) for raw in rows]


def one(place: Path, names: str, cells: str) -> Row | RowFault:
    """The only row of a file with these columns."""
    (row,) = read(place, f"{names}\n{cells}\n".encode())
    return row


def test_lines_are_those_of_the_file(tmp_path):
    """A record is named after the line it begins in; blank lines and those in quotes count."""
    text = b'\xef\xbb\xbfvideo,question\r\n\r\na.mp4,"Who\r\nis it?"\r\n  \r\nb.mp4,Where?'
    first, second = read(tmp_path, text)
    assert (first.line, first.questions) == (3, ("Who\r\nis it?",))
    assert (second.line, second.questions) == (6, ("Where?",))


def test_cells_have_the_types_of_their_fields(tmp_path):
    """Numbers, truths, JSON lists and objects in cells; an empty cell is an absent field."""
    names = "id,video,questions,num_frames,fps,start_s,key_frames,times_s,n,seed,system"
    cells = '007,a.mp4,"[""a"", ""b""]",4,0.5,1e0,TRUE,,1,-3,"Be ""brief"""'
    row = one(tmp_path, names, cells)
    assert row == Row(
        line=2,
        row_id="007",
        video="a.mp4",
        questions=("a", "b"),
        num_frames=4,
        fps=0.5,
        start_s=1.0,
        key_frames=True,
        seed=-3,
        system='Be "brief"',
    )


def test_a_schema_is_json_text(tmp_path):
    """An object stands in its cell as JSON."""
    row = one(tmp_path, "video,question,json_schema", 'a,q,"{""type"": ""null""}"')
    assert row.constraint == Constraint("json_schema", '{"type": "null"}')


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("images", "x.png", ("x.png",)),
        ("images", '"[""x.png"", ""y.png""]"', ("x.png", "y.png")),
    ],
)
def test_a_plain_text_is_one_entry(tmp_path, name, text, expected):
    """A cell of pictures is one place, or a JSON list of them."""
    assert getattr(one(tmp_path, f"{name},question", f"{text},q"), name) == expected


@pytest.mark.parametrize(
    ("names", "cells", "part"),
    [
        ("num_frames", "4.0", "num_frames must be a whole number, not 4.0"),
        ("num_frames", "four", 'num_frames must be a whole number, not "four"'),
        ("fps", " 2", 'fps must be a number, not " 2"'),
        ("fps", "NaN", 'fps must be a number, not "NaN"'),
        ("fps", "1_0", 'fps must be a number, not "1_0"'),
        ("max_tokens", "9" * 5000, 'max_tokens must be a whole number, not "999'),
        ("key_frames", "yes", 'key_frames must be true or false, not "yes"'),
        ("times_s", "1", "times_s must be a list, not 1"),
        ("turns", "Who?", 'turns must be a list, not "Who?"'),
        ("questions", "[1", 'questions must be a list, not "[1"'),
        ("json_schema", '"{""a"":1,""a"":2}"', "json_schema must be a JSON schema"),
    ],
)
def test_a_wrong_cell_is_named_with_its_value(tmp_path, names, cells, part):
    """What a cell of this column cannot mean is a fault with column and text."""
    fault = one(tmp_path, f"video,{names}", f"a.mp4,{cells}")
    assert part in fault.message
    assert fault.message.startswith("line 2: ")


BROKEN = b"""video,question
a.mp4,one
b.mp4,"cut
c.mp4,"two"
d.mp4,x,more
e.mp4
f.mp4,\xff
,no clip
g.mp4,three
h.mp4,"never closed
i.mp4,four
"""


def test_a_broken_record_takes_no_other_along(tmp_path):
    """Every line is a row or a fault of its own, also behind a quote that is never closed."""
    rows = read(tmp_path, BROKEN)
    good = {row.line: row.questions[0] for row in rows if isinstance(row, Row)}
    bad = {row.line: row.message for row in rows if isinstance(row, RowFault)}
    assert good == {2: "one", 4: "two", 9: "three", 11: "four"}
    assert bad == {
        3: "line 3: not CSV: a quote is closed before the end of its cell, "
        "write a quote in a cell twice",
        5: 'line 5: 3 cells, but the file has 2 columns, the last is "more"',
        6: "line 6: 1 cells, but the file has 2 columns",
        7: "line 7: question is not UTF-8 at character 1",
        8: "line 8: video is missing, give video or images",
        10: "line 10: not CSV: a quote is opened and never closed",
    }


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"", "in.csv, line 1: no line names the columns"),
        (b"\n\n", "in.csv, line 1: no line names the columns"),
        (b'\n"video"x,question\na,q\n', "in.csv, line 2: not CSV: a quote is closed before"),
        (b"video,question\ra,q\r", "in.csv, line 1: not CSV: a line ends with CR alone"),
        (b"video,question,mood\na,b,c\n", 'nobody reads column "mood"; known are choices'),
        (b"video,video,question\na,a,b\n", 'column "video" is there twice'),
        (b"question,id\na,1\n", 'no column video or images, it has "question", "id"'),
        (b"video;question\na;b\n", 'it has "video;question". hint: the first line of a CSV'),
        (b'{"video": "a.mp4"}\n', "no column video or images"),
        (b"PAR1....", "is a Parquet file, not csv. hint: --format parquet"),
        ("video,question\n".encode("utf-16"), "is text in UTF-16, not csv. hint: export it"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, content, part):
    """A file without our columns is refused at once, with its name and a way out."""
    with pytest.raises(BadRequest) as caught:
        read(tmp_path, content)
    assert part in str(caught.value)
    assert "in.csv" in str(caught.value)


def test_other_columns_are_left_alone_if_asked(tmp_path):
    """With extra_fields=ignore, a column that nobody reads may hold anything."""
    (row,) = read(tmp_path, b",mood,video,question\n0,sad,a.mp4,q\n", IGNORE)
    assert (row.video, row.questions) == ("a.mp4", ("q",))


def test_a_long_cell_is_read(tmp_path):
    """A picture in a data: address is no longer than a cell may be."""
    row = one(tmp_path, "images,question", '"data:,' + "x" * 400_000 + '",q')
    assert len(row.images[0]) == 400_006


def test_a_packed_file_is_read(tmp_path):
    """`.csv.gz` and `.jsonl.gz` are unpacked as they are read."""
    (tmp_path / "in.csv.gz").write_bytes(gzip.compress(b"video,question\na,q\n"))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b'{"video":"a","question":"q"}'))
    read = [Rows(tmp_path / name) for name in ("in.csv.gz", "in.jsonl.gz")]
    assert [[rows.parse(raw).questions for raw in rows] for rows in read] == [[("q",)]] * 2


@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(b"video,question\n" * 99)[:-9]])
def test_a_damaged_packed_file_is_refused(tmp_path, content):
    """What cannot be unpacked is told with the file's name."""
    (tmp_path / "in.csv.gz").write_bytes(content)
    with pytest.raises(BadRequest, match=r"in\.csv\.gz is not packed by gzip, or damaged"):
        list(Rows(tmp_path / "in.csv.gz"))


def test_a_name_that_tells_nothing_needs_the_format(tmp_path):
    """An unknown suffix is refused; --format says what the file is."""
    path = tmp_path / "in.rows"
    path.write_bytes(b"video,question\na,q\n")
    with pytest.raises(BadRequest, match=r"does not tell the format.*hint: --format"):
        Rows(path)
    assert len(list(Rows(path, RowSettings(format="csv")))) == 1
