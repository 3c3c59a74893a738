"""Records as tables."""

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mmserve.batch import Record, record_line, write_table
from mmserve.core import BadRequest, Broken, Timing, Usage
from mmserve.core.output import CacheUse

USAGE = Usage(10, 4, video_tokens=6, cached_tokens=5, cache=(CacheUse("text", "hit", 5),))
RECORDS = [
    Record(
        row_id="a,b",
        line=1,
        question_index=0,
        question='Who\nis "it"?',
        answer="=1+1, né\r",
        frames_used=2,
        timestamps_s=(0.0, 0.5),
        usage=USAGE,
        timing=Timing(total=2.5),
        note="cut",
        sample_index=3,
    ),
    Record(row_id=7, line=2, question_index=1, question=None, error=("bad_row", "line 2: x")),
    Record(
        row_id="c",
        line=3,
        question_index=0,
        question="half \ud800",
        answer="",
        frames_used=1,
        usage=USAGE,
        timing=Timing(),
    ),
]
LINES = [record_line(record) for record in RECORDS]


def from_csv(path: Path) -> list[dict]:
    """The records that the table holds, as lines of JSON have them, ids as texts."""
    with path.open(encoding="utf-8", newline="") as file:
        return [record_of(cells) for cells in csv.DictReader(file)]


def record_of(cells: dict[str, str]) -> dict:
    """A record of the cells of one row."""
    error = {"code": cells.pop("error_code"), "message": cells.pop("error_message")}
    found: dict = {"error": error if error["code"] else None}
    texts = ("id", "question", "answer", "note")
    for name, text in cells.items():
        value = text if name in texts else json.loads(text or "null")
        group, _, part = name.partition(".")
        if part:
            found.setdefault(group, {})[part] = value
        else:
            found[name] = value
    return found


def from_parquet(path: Path) -> list[dict]:
    """The same from a Parquet file."""
    found = pq.read_table(path).to_pylist()
    for record in found:
        code, message = record.pop("error_code"), record.pop("error_message")
        record["error"] = {"code": code, "message": message} if code else None
    return found


def expected(*, is_csv: bool) -> list[dict]:
    """The records as a table gives them back."""
    found = []
    for line in LINES:
        record = {"note": None, "sample_index": None} | json.loads(line)
        record["id"] = str(record["id"])
        if record["question"] is not None:
            record["question"] = record["question"].encode("utf-8", "backslashreplace").decode()
        if is_csv:
            for name in ("question", "answer", "note"):
                record[name] = record[name] or ""
            record["usage"] = record["usage"] or dict.fromkeys(json.loads(LINES[0])["usage"])
            record["timing_ms"] = record["timing_ms"] or dict.fromkeys(
                json.loads(LINES[0])["timing_ms"]
            )
        found.append(record)
    return found


def test_csv_gives_every_record_back(tmp_path):
    """What is written as CSV is read as the same records; null is an empty cell."""
    write_table(iter(LINES), tmp_path / "out.csv")
    assert from_csv(tmp_path / "out.csv") == expected(is_csv=True)


def test_parquet_gives_every_record_back(tmp_path):
    """What is written as Parquet is read as the same records."""
    write_table(iter(LINES), tmp_path / "out.parquet")
    assert from_parquet(tmp_path / "out.parquet") == expected(is_csv=False)


def test_parquet_columns_have_types(tmp_path):
    """Numbers are numbers, times a list, token counts and times of stages structs."""
    write_table(iter(LINES[1:2]), tmp_path / "out.parquet")
    schema = pq.read_schema(tmp_path / "out.parquet")
    kinds = {name: str(schema.field(name).type) for name in schema.names}
    assert (kinds["line"], kinds["sample_index"], kinds["id"]) == ("int64", "int64", "string")
    assert kinds["timestamps_s"].startswith("list<")
    assert kinds["usage"].startswith("struct<prompt_tokens: int64")
    assert kinds["timing_ms"].startswith("struct<fetch: double")


def test_parquet_is_written_in_row_groups(tmp_path):
    """Ten thousand records are three row groups, in order."""
    write_table((LINES[n % 3] for n in range(10_000)), tmp_path / "out.parquet")
    with pq.ParquetFile(tmp_path / "out.parquet") as file:
        assert (file.num_row_groups, file.metadata.num_rows) == (3, 10_000)


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_table_of_nothing_has_its_columns(tmp_path, name):
    """A run without records gives a table without rows."""
    write_table(iter(()), tmp_path / name)
    read = from_csv if name.endswith(".csv") else from_parquet
    assert read(tmp_path / name) == []
    assert (tmp_path / name).stat().st_size > 0


@pytest.mark.parametrize("name", ["out.csv", "out.parquet"])
def test_a_table_is_there_whole_or_not_at_all(tmp_path, name):
    """A failure on the way leaves the old file, and nothing beside it."""

    def failing():
        yield LINES[0]
        raise KeyboardInterrupt

    path = tmp_path / name
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt):
        write_table(failing(), path)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [(name, b"old")]


def test_a_field_that_no_column_holds_is_no_loss_in_silence(tmp_path):
    """A record with a field beyond the columns ends the writing."""
    with pytest.raises(Broken, match="no column for record field 'mood'"):
        write_table(iter([b'{"id": 1, "mood": 2}']), tmp_path / "out.csv")


def test_other_names_are_no_tables(tmp_path):
    """Only .csv and .parquet are written as tables."""
    with pytest.raises(BadRequest, match="is no table"):
        write_table(iter(()), tmp_path / "out.jsonl")
