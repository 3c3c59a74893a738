"""Reports and dry runs over a real engine, in this process and behind HTTP."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.testing.clips import clip


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> Path:
    """Two clips with three questions each, the first one asked about in two rows; a picture."""
    place = tmp_path_factory.mktemp("rows")
    for seed in (1, 2):
        (place / f"{seed}.mp4").write_bytes(clip(seed).mp4)
    Image.new("RGB", (40, 40), (90, 10, 10)).save(place / "p.png")
    frames = {"num_frames": 3, "max_tokens": 4}
    found = [
        {"video": str(place / "1.mp4"), "questions": ["what?", "when?"], **frames},
        {"video": str(place / "2.mp4"), "questions": ["what?", "where?", "who?"], **frames},
        {"video": str(place / "1.mp4"), "question": "who?", **frames},
        {"images": [str(place / "p.png")], "question": "<b>what</b>?", "max_tokens": 4},
    ]
    path = place / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    return path


def run(engine, rows: Path, output: Path, *flags: str):
    """The result of the command on this engine."""
    arguments = ["video-qa", str(rows), "-o", str(output), *flags]
    return CliRunner().invoke(app, arguments, obj=lambda config: nullcontext(engine))


def test_a_dry_run_foresees_the_tokens_of_the_run(engine, rows, tmp_path):
    """Its prompt tokens are the run's, and a cold run computes at least its least."""
    output = tmp_path / "out.jsonl"
    told = json.loads(run(engine, rows, output, "--dry-run", "--json").stdout)
    assert not output.exists()
    assert engine.flush_cache(5)
    assert run(engine, rows, output).exit_code == 0
    usages = [json.loads(line)["usage"] for line in output.read_text().splitlines()]
    prompt_tokens = sum(usage["prompt_tokens"] for usage in usages)
    computed = prompt_tokens - sum(usage["cached_tokens"] for usage in usages)
    tokens = told["tokens"]
    assert tokens["is_exact"]
    assert (tokens["prompt_tokens"], tokens["frames"]) == (prompt_tokens, 6)
    assert tokens["least_tokens"] <= computed
    assert told["expected_s"] > 0


def test_a_server_tells_a_dry_run_the_same(engine, server_url, rows, tmp_path):
    """Over HTTP, counts are those of a dry run in this process."""
    output = tmp_path / "out.jsonl"
    here = json.loads(run(engine, rows, output, "--dry-run", "--json").stdout)
    flags = ("--dry-run", "--json", "--url", server_url)
    there = json.loads(run(engine, rows, output, *flags).stdout)
    assert there["tokens"] == here["tokens"]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_report_shows_the_frames(engine, server_url, rows, tmp_path, is_remote):
    """Three frames of each clip row and the picture, with times; markup of rows stays text."""
    place = tmp_path / "run.html"
    flags = ["--report", str(place), *(["--url", server_url] if is_remote else [])]
    assert run(engine, rows, tmp_path / "out.jsonl", *flags).exit_code == 0
    page = place.read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 3 * 3 + 1
    assert "&lt;b&gt;what&lt;/b&gt;?" in page
