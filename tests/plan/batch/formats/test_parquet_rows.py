"""Rows of a Parquet file."""

import datetime
import importlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mmserve.batch import Row, Rows, RowSettings
from mmserve.core import BadRequest


def write(place: Path, *rows: dict, **kinds: pa.DataType) -> Path:
    """A Parquet file of these rows; columns that are named have that type."""
    path = place / "in.parquet"
    table = pa.Table.from_pylist(list(rows))
    for name, kind in kinds.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, table[name].cast(kind))
    pq.write_table(table, path, row_group_size=2)
    return path


def read(path: Path, settings: RowSettings | None = None) -> list:
    """Every row of the file."""
    rows = Rows(path, settings)
    return [rows.parse(raw) for raw in rows]


def test_columns_have_the_types_of_their_fields(tmp_path):
    """Lists are arrays, null is absent, a row is named after its number."""
    path = write(
        tmp_path,
        {"id": 7, "video": "a.mp4", "questions": ["a", "b"], "fps": 0.5, "json_schema": None},
        {"id": None, "video": "b.mp4", "questions": ["c"], "json_schema": '{"type": "null"}'},
    )
    first, second = read(path)
    assert first == Row(line=1, row_id=7, video="a.mp4", questions=("a", "b"), fps=0.5)
    assert (second.row_id, second.fps) == ("line-2", None)
    assert second.constraint.value == '{"type": "null"}'


def test_other_arrow_types_of_text_are_text(tmp_path):
    """Large and dictionary strings are texts."""
    dictionary = pa.dictionary(pa.int32(), pa.string())
    row = {"video": "a", "question": "q"}
    path = write(tmp_path, row, video=dictionary, question=pa.large_string())
    assert read(path)[0].questions == ("q",)


def test_faults_are_those_of_the_fields(tmp_path):
    """A value of another type or out of range fails its row, with its number."""
    rows = [{"video": "a", "question": "q", "num_frames": value} for value in (2.0, None, 0.5)]
    faults = read(write(tmp_path, *rows))
    assert faults[0].message == "line 1: num_frames must be a whole number, not 2.0"
    assert faults[1] == Row(line=2, row_id="line-2", video="a", questions=("q",))


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"video": b"\x00", "question": "q"}, "column video is of binary"),
        ({"video": "a", "question": "q", "mood": "sad"}, 'nobody reads column "mood"'),
        ({"question": "q"}, "no column video or images"),
        ({"video": "a", "json_schema": {"type": "null"}}, "column json_schema is a struct"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(tmp_path, row, part):
    """A file with a column that nobody can read is refused at once."""
    with pytest.raises(BadRequest, match=part):
        Rows(write(tmp_path, row))


def test_a_template_reads_other_columns(tmp_path):
    """A column that the template names is read, also dates; others are not even loaded."""
    path = write(
        tmp_path, {"video": "a", "day": datetime.date(2024, 5, 1), "blob": b"\xff" * 9}
    )
    settings = RowSettings(template="What was on {{ day }}?", extra_fields="ignore")
    assert read(path, settings)[0].questions == ("What was on 2024-05-01?",)


def test_a_file_is_not_read_at_once(tmp_path):
    """Going through a file of 16 MiB holds less than 6 MiB of it at any time."""
    path = tmp_path / "in.parquet"
    texts = [f"{n:08}" * 256 for n in range(8200)]
    table = pa.table({"video": ["a"] * len(texts), "question": texts})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    del table
    before = pa.total_allocated_bytes()
    held = max(pa.total_allocated_bytes() - before for _ in Rows(path))
    assert path.stat().st_size > 16 * 2**20
    assert held < 6 * 2**20


def test_what_is_no_parquet_is_refused(tmp_path):
    """A file of another kind is refused with its name."""
    path = tmp_path / "in.parquet"
    path.write_bytes(b"video,question\n")
    with pytest.raises(BadRequest, match=r"in\.parquet is no Parquet file"):
        Rows(path)


def test_damage_farther_on_is_told_with_its_place(tmp_path):
    """A file whose data are damaged is refused while it is read."""
    path = write(tmp_path, *({"video": "a", "question": f"q{n}"} for n in range(9)))
    content = bytearray(path.read_bytes())
    content[4:40] = bytes(36)
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"in\.parquet cannot be read after row 0"):
        read(path)


def test_a_moment_that_python_has_not_is_told(tmp_path):
    """Nanoseconds in a column that the template reads are refused with their row."""
    path = tmp_path / "in.parquet"
    moments = pa.array([1_000, 1_001], pa.timestamp("ns"))
    pq.write_table(pa.table({"video": ["a", "a"], "at": moments}), path)
    with pytest.raises(BadRequest, match=r"cannot be read after row 0: Nanosecond"):
        list(Rows(path, RowSettings(template="At {{ at }}?")))


def test_a_missing_package_is_told(tmp_path, monkeypatch):
    """Without pyarrow, the error says what to install."""

    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    path = write(tmp_path, {"video": "a", "question": "q"})
    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(BadRequest, match=r'pip install "mmserve\[parquet\]"'):
        Rows(path)
