"""Where an output may be, and what is left of a run that never began."""

import json
import os
from pathlib import Path

import pytest
from support.scripted_client import ScriptedClient

from mmserve.batch import (
    AskSettings,
    BatchRun,
    BatchSettings,
    OutputMode,
    Row,
    Rows,
    answer_file,
    progress_path,
    refused_record,
)
from mmserve.core import BadRequest, MediaRefused


@pytest.fixture
def source(tmp_path) -> Path:
    """Five rows about a clip."""
    path = tmp_path / "in.jsonl"
    rows = [{"video": "a.mp4", "question": f"q{n}"} for n in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def names(folder: Path) -> list[str]:
    """Of the files in it."""
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("no/out.jsonl", "there is no folder"),
        ("no/out.csv", "there is no folder"),
        ("folder", "is a folder"),
        ("folder.csv", "is a folder"),
        ("pipe.jsonl", "is no plain file"),
        ("out.jsonl.gz", "not written as .gz"),
        ("out.csv.gz", "not written as .gz"),
        ("out.xlsx", "not written as .xlsx. hint: name it .jsonl, .csv or .parquet"),
    ],
)
@pytest.mark.parametrize("mode", list(OutputMode))
def test_a_place_that_is_none_is_refused(source, tmp_path, name, part, mode):
    """Before anything is read or made; a device would be replaced by a file at the end."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")
    before = names(tmp_path)
    with pytest.raises(BadRequest) as caught:
        BatchRun(source, tmp_path / name, BatchSettings(mode=mode))
    assert part in str(caught.value)
    assert names(tmp_path) == before


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv"])
def test_a_run_that_never_began_leaves_no_file(source, tmp_path, name):
    """Neither where no client came, nor where the input was found damaged."""
    BatchRun(source, tmp_path / name, BatchSettings()).close()
    packed = tmp_path / "in.jsonl.gz"
    packed.write_bytes(b"\x1f\x8b no gzip")
    with pytest.raises(BadRequest, match="not packed by gzip"):
        BatchRun(packed, tmp_path / name, BatchSettings())
    assert names(tmp_path) == ["in.jsonl", "in.jsonl.gz"]


def test_a_run_that_never_began_keeps_what_was_there(source, tmp_path):
    """An output and an index that an earlier run made stay as they are."""
    target = tmp_path / "out.jsonl"
    answer_file(ScriptedClient(), source, target, BatchSettings())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    BatchRun(source, target, BatchSettings(mode=OutputMode.RESUME)).close()
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_full_disk_at_the_end_loses_nothing(source, tmp_path, monkeypatch):
    """The error names the file, nothing half written stays, and --resume ends the run."""
    target = tmp_path / "out.jsonl"

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    def fill(summary) -> None:
        if summary.answered == 5:
            monkeypatch.setattr(os, "fsync", full)

    answers = iter("edcba")
    client = ScriptedClient(lambda request: next(answers))
    with BatchRun(source, target, BatchSettings(concurrency=1)) as run:
        run._output._is_in_order = False  # as where the order of the work is another
        with pytest.raises(OSError, match=r"No space left.*out\.jsonl\.part"):
            run.answer(client, fill)
        monkeypatch.undo()
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.progress"]
    settings = BatchSettings(mode=OutputMode.RESUME)
    summary = answer_file(ScriptedClient(), source, target, settings)
    assert (summary.answered, summary.kept_answered) == (0, 5)


def test_a_damaged_index_is_told(source, tmp_path):
    """A file that begins like an index and is none further on is named, and the way out."""
    target = tmp_path / "out.jsonl"
    answer_file(ScriptedClient(), source, target, BatchSettings())
    place = progress_path(target)
    content = place.read_bytes()
    place.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(BadRequest, match=r"out\.jsonl\.progress does not tell.*delete it"):
        BatchRun(source, target, BatchSettings(mode=OutputMode.RESUME))
    place.unlink()
    place.mkdir()
    with pytest.raises(OSError, match=r"unable to open.*out\.jsonl\.progress"):
        BatchRun(source, target, BatchSettings(mode=OutputMode.RESUME))


@pytest.mark.parametrize(
    ("name", "value"),
    [("fps", float("inf")), ("seed", 10**30), ("max_tokens", 2**40), ("temperature", 101.0)],
)
def test_what_no_row_may_have_is_wrong_for_all(source, name, value):
    """A setting for silent rows has the limits of the field; it is not told row by row."""
    with pytest.raises(BadRequest, match=f"^{name} is "):
        Rows(source, ask=AskSettings(**{name: value}))


@pytest.mark.parametrize(
    ("row", "index", "told"),
    [
        ({"video": "http://h/a.mp4"}, None, "http://h/a.mp4: no frames"),
        ({"video": "data:video/mp4;base64," + "A" * 4000}, None, "no frames"),
        ({"images": ("a.png", "b.png")}, 1, "b.png: no frames"),
        ({"images": ("a.png", "b.png")}, None, "no frames"),
        ({"images": ("a.png",)}, None, "a.png: no frames"),
    ],
)
def test_a_refusal_names_the_medium_and_not_its_bytes(row, index, told):
    """The path or address as the row has it; a data: address is the content itself."""
    fields = {} if index is None else {"index": index}
    error = MediaRefused("no frames", reason="undecodable", **fields)
    record = refused_record(Row(line=1, row_id=1, questions=("q",), **row), 0, error)
    assert record.error == ("media_refused", told)
