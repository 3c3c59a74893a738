"""The batch tool over a real engine and real H.264 clips."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.core import Request


def write_clip(path: Path, colours: list[tuple[int, int, int]]) -> Path:
    """An H.264 clip, two frames a second, each frame of one colour."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=2)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for colour in colours:
            pixels = np.full((64, 64, 3), colour, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Two clips and a picture."""
    place = tmp_path_factory.mktemp("clips")
    write_clip(place / "a.mp4", [(200, 20, 20), (20, 200, 20), (20, 20, 200), (9, 9, 9)])
    write_clip(place / "b.mp4", [(10, 90, 200)] * 40)
    Image.new("RGB", (40, 40), (90, 10, 10)).save(place / "p.png")
    return place


class Bench:
    """Runs the command on one engine, and reads what it wrote."""

    def __init__(self, engine, clips: Path, place: Path) -> None:
        self.engine, self.clips, self.place = engine, clips, place
        self.source, self.target = place / "in.jsonl", place / "out.jsonl"
        self.asked: list[str] = []

    def row(self, question: str, **fields: object) -> dict[str, object]:
        """A row about the short clip, answered in a few tokens."""
        base = {"video": str(self.clips / "a.mp4"), "question": question}
        return base | {"num_frames": 2, "max_tokens": 4} | fields

    def write(self, *rows: object) -> None:
        """Make the input; bytes are written as they are."""
        lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        self.source.write_bytes(b"\n".join(lines) + b"\n")

    def run(self, *flags: str):
        """The result of the command."""
        arguments = ["video-qa", str(self.source), "-o", str(self.target), *flags]
        return CliRunner().invoke(app, arguments, obj=lambda config: nullcontext(self))

    def submit(self, request: Request):
        """Hand on to the engine, and count."""
        self.asked.append(request.request_id)
        return self.engine.submit(request)

    def records(self) -> list[dict[str, Any]]:
        """All records; every line must be one."""
        return [json.loads(line) for line in self.target.read_bytes().splitlines()]

    def failed(self) -> dict[int, dict[str, str]]:
        """Errors by line."""
        return {record["line"]: record["error"] for record in self.records() if record["error"]}


@pytest.fixture
def bench(engine, folder, tmp_path) -> Bench:
    """The command on the shared engine, its files in a folder of their own."""
    return Bench(engine, folder, tmp_path)


@pytest.fixture(autouse=True)
def both_readers_agree(bench) -> Iterator[None]:
    """Whatever a test wrote, no record has both an answer and an error, or neither."""
    yield
    if bench.target.exists():
        for record in bench.records():
            assert (record["answer"] is None) == (record["error"] is not None)


def test_a_rows_clip_is_read_and_encoded_once(bench):
    """Five questions about one clip: one decode, frames encoded once, four find their KV."""
    bench.engine.flush_cache(5)
    before = bench.engine.counters()
    questions = [f"question {n}?" for n in range(5)]
    bench.write(bench.row("") | {"question": None, "questions": questions})
    assert bench.run().exit_code == 0
    after = bench.engine.counters()
    names = ("media_decodes_total", "encoded_items_total")
    assert [after[name] - before[name] for name in names] == [1, 2]
    usages = [record["usage"] for record in bench.records()]
    assert [usage["cached_video_tokens"] for usage in usages].count(0) == 1


def test_a_record_tells_the_frames(bench):
    """Frames used, their times in order, tokens, and times by stage."""
    bench.write(bench.row("what?", num_frames=3))
    bench.run()
    record = bench.records()[0]
    assert record["frames_used"] == len(record["timestamps_s"]) == 3
    assert record["timestamps_s"] == sorted(record["timestamps_s"])
    assert record["usage"]["video_tokens"] > 0
    assert record["timing_ms"]["total"] > 0


def test_pictures(bench):
    """A row may ask about pictures."""
    pictures = {"images": [str(bench.clips / "p.png")], "question": "what?", "max_tokens": 4}
    bench.write(pictures)
    assert bench.run().exit_code == 0
    record = bench.records()[0]
    assert (record["frames_used"], record["timestamps_s"]) == (1, None)
    assert record["usage"]["image_tokens"] > 0


def test_constraints_hold(bench):
    """Answers obey the row's choices, pattern and schema."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    bench.write(
        bench.row("x", choices=["left", "right"], max_tokens=16),
        bench.row("x", regex="[ab]{3}", max_tokens=16),
        bench.row("x", json_schema=schema | {"additionalProperties": False}, max_tokens=40),
        bench.row("x", regex="("),
    )
    assert bench.run().exit_code == 3
    answers = [record["answer"] for record in bench.records()]
    assert answers[0] in ("left", "right")
    assert len(answers[1]) == 3
    assert list(json.loads(answers[2])) == ["a"]
    assert bench.failed()[4]["code"] == "constraint_refused"


def test_overlap_does_not_change_answers(bench):
    """The same records, one question at a time or all at once."""
    bench.write(*(bench.row(f"question {n % 4}?", max_tokens=6) for n in range(8)))
    bench.run("--concurrency", "1")
    alone = [record["answer"] for record in bench.records()]
    bench.engine.flush_cache(5)
    bench.run("--overwrite", "--concurrency", "32")
    assert [record["answer"] for record in bench.records()] == alone


def test_a_server_gives_the_same_answers(bench, server_url):
    """Over HTTP, with the files sent along, records are those of a run in this process."""
    bench.write(
        bench.row("what?", num_frames=3, start_s=0.5),
        bench.row("x", choices=["left", "right (or not)"], max_tokens=20),
        {"images": [str(bench.clips / "p.png")], "question": "what?", "max_tokens": 4},
        bench.row("q", video=str(bench.place / "missing.mp4")),
    )
    assert bench.run().exit_code == 3
    here = bench.records()
    assert bench.run("--overwrite", "--url", server_url).exit_code == 3
    for own, other in zip(here, bench.records(), strict=True):
        same = ("line", "answer", "frames_used", "timestamps_s")
        assert {name: own[name] for name in same} == {name: other[name] for name in same}
        assert (own["error"] or {}).get("code") == (other["error"] or {}).get("code")
    assert [record["error"] is None for record in here] == [True, True, True, False]


def test_malformed_lines(bench):
    """Bad lines are records with their own line number; blank lines are ignored."""
    lines: list[object] = [bench.row(f"q{n}") for n in range(1, 11)]
    lines = [json.dumps(line).encode() + b"\r" for line in lines]
    lines[3], lines[5], lines[7] = b'{"video": "a.mp4",', b"", lines[7][:-2] + b",}\r"
    bench.write(*lines)
    result = bench.run()
    assert (result.exit_code, len(bench.records())) == (3, 9)
    assert list(bench.failed()) == [4, 8]
    assert "7 answered, 2 failed" in result.stderr


def test_lines_that_are_no_rows(bench):
    """Valid JSON of another shape names what is wrong; the rest is answered."""
    odd: list[object] = [
        b"[1,2,3]",
        b'"hello"',
        b"null",
        b"7",
        b"{}",
        {"id": 5, "question": 12, "video": ["x"]},
        bench.row("q", id=None),
    ]
    bench.write(*odd, bench.row("good"))
    assert bench.run().exit_code == 3
    assert list(bench.failed()) == [1, 2, 3, 4, 5, 6, 7]
    messages = [error["message"] for error in bench.failed().values()]
    named = ["question", "question", "question", "question", "video", "question", "id"]
    assert [name in text for name, text in zip(named, messages, strict=True)] == [True] * 7


def test_rows_too_long_for_the_context(bench):
    """Two rows that do not fit are two errors with the reason; eighteen are answered."""
    rows = [bench.row(f"q{n}") for n in range(1, 21)]
    rows[6] = bench.row("long " * bench.engine.model.context_length * 2)
    rows[11] = bench.row("q", video=str(bench.clips / "b.mp4"), num_frames=40)
    bench.write(*rows)
    result = bench.run()
    assert (result.exit_code, list(bench.failed())) == (3, [7, 12])
    assert {error["code"] for error in bench.failed().values()} == {"context_too_long"}
    assert "18 answered, 2 failed" in result.stderr


def test_files_that_cannot_be_read(bench, media_host):
    """Each has its own message with the path or address as given; the good one is answered."""
    (bench.place / "empty.mp4").write_bytes(b"")
    (bench.place / "noise.mp4").write_bytes(b"\0\1\2" * 500)
    places = [
        str(bench.place / "missing.mp4"),
        str(bench.place),
        str(bench.place / "empty.mp4"),
        str(bench.place / "noise.mp4"),
        media_host.put("/there.mp4", b"x").replace("there", "gone"),
    ]
    bench.write(*(bench.row("q", video=place) for place in places), bench.row("good"))
    began_s = time.monotonic()
    assert bench.run().exit_code == 3
    messages = [error["message"] for error in bench.failed().values()]
    assert [place in text for place, text in zip(places, messages, strict=True)] == [True] * 5
    assert len({m.replace(p, "") for m, p in zip(messages, places, strict=True)}) >= 4
    assert media_host.hits.count("/gone.mp4") <= 2
    assert time.monotonic() - began_s < 60


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(bench):
    """The reason is told."""
    path = write_clip(bench.place / "secret.mp4", [(1, 2, 3)])
    path.chmod(0)
    bench.write(bench.row("q", video=str(path)))
    bench.run()
    assert "permission" in bench.failed()[1]["message"].lower()


def test_rows_with_one_id(bench):
    """Equal and missing ids are all answered, and told apart by line."""
    bench.write(bench.row("a", id="x"), bench.row("b", id="x"), bench.row("c"), bench.row("d"))
    assert bench.run().exit_code == 0
    found = [(record["id"], record["line"], record["question"]) for record in bench.records()]
    assert found == [("x", 1, "a"), ("x", 2, "b"), ("line-3", 3, "c"), ("line-4", 4, "d")]


@pytest.mark.parametrize("cut_bytes", [0, 1, 40])
def test_resume_after_a_cut(bench, cut_bytes):
    """Rows that are done are not asked again, a half line is."""
    bench.write(*(bench.row(f"вопрос {n}") for n in range(1, 31)))
    bench.run("--quiet")
    whole = [(r["line"], r["question"], r["answer"]) for r in bench.records()]
    lines = bench.target.read_bytes().splitlines(keepends=True)
    kept = b"".join(lines[:11])
    bench.target.write_bytes(kept[: len(kept) - cut_bytes])
    bench.asked.clear()
    assert bench.run("--resume").exit_code == 0
    assert [(r["line"], r["question"], r["answer"]) for r in bench.records()] == whole
    assert len(bench.asked) == (19 if cut_bytes == 0 else 20)
