"""Whole runs over tables, on a scripted engine."""

import csv
import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.cli import app

COLUMNS = ("id", "video", "question", "num_frames")


def write_csv(path: Path, rows: list[dict]) -> Path:
    """The rows as CSV; None is an empty cell."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path.with_suffix(".csv")


def write_parquet(path: Path, rows: list[dict]) -> Path:
    """The rows as Parquet."""
    rows = [dict.fromkeys(COLUMNS) | row for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def run(source: Path, *flags: str):
    """The exit code of the command, and its records."""
    target = source.with_name("out.jsonl")
    arguments = ["video-qa", str(source), "-o", str(target), "-q", *flags]
    result = CliRunner().invoke(app, arguments, obj=lambda _: nullcontext(ScriptedClient()))
    text = target.read_bytes() if target.exists() else b""
    return result, [json.loads(line) for line in text.splitlines()]


both = pytest.mark.parametrize(("write", "first"), [(write_csv, 2), (write_parquet, 1)])


@both
def test_bad_rows_of_a_table_fail_alone(tmp_path, write, first):
    """Good rows are answered, bad ones have a record with their place; the exit code is 3."""
    rows = [{"video": "a.mp4", "question": f"q{n}"} for n in range(5)]
    rows[1]["video"] = None
    rows[2]["question"] = None
    rows[3]["num_frames"] = 0
    result, records = run(write(tmp_path / "in", rows))
    assert result.exit_code == 3
    assert [record["line"] for record in records] == [first + n for n in range(5)]
    assert [record["answer"] for record in records] == ["Q0", None, None, None, "Q4"]
    messages = [record["error"]["message"] for record in records[1:4]]
    assert messages == [
        f"line {first + 1}: video is missing, give video or images",
        f"line {first + 2}: question is missing, give question or questions",
        f"line {first + 3}: num_frames is 0, allowed is 1 to 2,147,483,647",
    ]


@both
def test_rows_of_a_table_with_one_id_are_all_answered(tmp_path, write, first):
    """Equal ids are told apart by line; a missing one is generated."""
    rows = [{"id": name, "video": "a", "question": f"q{n}"} for n, name in enumerate("xx")]
    rows += [{"video": "a", "question": f"q{n}"} for n in (2, 3)]
    result, records = run(write(tmp_path / "in", rows))
    assert result.exit_code == 0
    assert [(record["id"], record["answer"]) for record in records] == [
        ("x", "Q0"),
        ("x", "Q1"),
        (f"line-{first + 2}", "Q2"),
        (f"line-{first + 3}", "Q3"),
    ]


@both
def test_flags_ask_a_table_without_questions(tmp_path, write, first):
    """--question and --template make the questions; the record has what was asked."""
    source = write(tmp_path / "in", [{"id": "x", "video": "a"}])
    flags = ["--question", "Who?", "--question", "Where?"]
    _, records = run(source, *flags, "--template", "{{ id }}: {{ question }}")
    assert [record["question"] for record in records] == ["x: Who?", "x: Where?"]


def test_a_table_that_cannot_be_read_asks_nothing(tmp_path):
    """A column nobody reads ends the run before it begins, without an output."""
    source = tmp_path / "in.csv"
    source.write_text("video,question,mood\na,q,sad\n")
    result, records = run(source)
    assert (result.exit_code, records) == (2, [])
    assert 'nobody reads column "mood"' in result.output.replace("\n", " ")
    result, records = run(source, "--extra-fields", "ignore")
    assert (result.exit_code, records[0]["answer"]) == (0, "Q")
