"""Tables of rows over a real engine and real files."""

import csv
import json
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmserve.cli import app


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[str]:
    """A missing file, a folder, an empty file and a good one."""
    place = tmp_path_factory.mktemp("pictures")
    (place / "folder").mkdir()
    (place / "empty.png").touch()
    Image.new("RGB", (40, 40), (90, 10, 10)).save(place / "p.png")
    return [str(place / name) for name in ("missing.png", "folder", "empty.png", "p.png")]


def write_csv(path: Path, places: list[str]) -> Path:
    """A plain text is one picture."""
    with path.with_suffix(".csv").open("w", newline="") as file:
        csv.writer(file).writerows([("images", "question"), *((at, "Red?") for at in places)])
    return path.with_suffix(".csv")


def write_parquet(path: Path, places: list[str]) -> Path:
    """Pictures as arrays."""
    table = pa.table({"images": [[at] for at in places], "question": ["Red?"] * len(places)})
    pq.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


@pytest.mark.parametrize("write", [write_csv, write_parquet])
def test_files_that_cannot_be_read_fail_alone(engine, pictures, tmp_path, write):
    """Each unreadable file has its own error with its path; the good one is answered."""
    source, target = write(tmp_path / "in", pictures), tmp_path / "out.jsonl"
    flags = ["-q", "--max-tokens", "4", "--system", "Be brief."]
    result = CliRunner().invoke(
        app,
        ["video-qa", str(source), "-o", str(target), *flags],
        obj=lambda _: nullcontext(engine),
    )
    assert result.exit_code == 3
    records = [json.loads(line) for line in target.read_bytes().splitlines()]
    messages = [record["error"]["message"] for record in records[:-1]]
    assert len(set(messages)) == 3
    assert all(place in text for place, text in zip(pictures, messages, strict=False))
    assert records[-1]["error"] is None
    assert records[-1]["frames_used"] == 1
