"""The order of a job on a real engine: what is computed, and what a kill leaves."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmserve.batch import AskSettings, BatchSettings, OutputMode, answer_file
from mmserve.core import EngineConfig
from mmserve.engine import Engine
from mmserve.testing import clip

NUM_FRAMES = 4


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> list[Path]:
    """Eight clips of scenes."""
    folder = tmp_path_factory.mktemp("scenes")
    paths = [folder / f"{n}.mp4" for n in range(8)]
    for n, path in enumerate(paths):
        path.write_bytes(clip(1_000_000 + n).mp4)
    return paths


def shuffled(clips: list[Path], num_questions: int) -> list[dict[str, object]]:
    """Rows of every clip and question, in no order."""
    rows: list[dict[str, object]] = [
        {"video": str(path), "question": f"What is object {n} doing?", "id": f"{path.stem}-{n}"}
        for path in clips
        for n in range(num_questions)
    ]
    random.Random(3).shuffle(rows)
    return rows


def write_rows(path: Path, rows) -> Path:
    """A batch file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_shuffled_job_computes_the_least(clips, tmp_path):
    """Each clip is opened once, each frame encoded once, and no shared beginning twice."""
    source = write_rows(tmp_path / "in.jsonl", shuffled(clips, num_questions=5))
    ask = AskSettings(num_frames=NUM_FRAMES, max_tokens=4)
    with Engine.from_config(EngineConfig(threads=1)) as engine:
        settings = BatchSettings(ask=ask, concurrency=8)
        summary = answer_file(engine, source, tmp_path / "out.jsonl", settings)
        counters = engine.counters()
    assert (summary.answered, summary.failed) == (40, 0)
    assert counters["media_decodes_total"] == len(clips)
    assert counters["encoded_items_total"] == len(clips) * NUM_FRAMES
    assert summary.tokens_least is not None
    assert summary.tokens_least <= summary.tokens_computed <= 1.01 * summary.tokens_least


class Counting:
    """An engine, and what it was asked."""

    def __init__(self, engine) -> None:
        self.engine = engine
        self.asked: list[str] = []

    def submit(self, request):
        """Hand on, and count."""
        self.asked.append(request.request_id)
        return self.engine.submit(request)


def whole_lines(target: Path) -> set[bytes]:
    """Records that are whole."""
    content = target.read_bytes() if target.exists() else b""
    return {line for line in content.splitlines(keepends=True) if line.endswith(b"\n")}


@pytest.mark.slow
def test_killed_at_any_moment_a_run_is_finished_by_the_next(clips, tmp_path, tiny_directory):
    """Three kills: in the end each question once, and nothing written is asked again."""
    source = write_rows(tmp_path / "in.jsonl", shuffled(clips, num_questions=5))
    target = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "mmserve", "video-qa", str(source), "-o", str(target)]
    command += ["--model", str(tiny_directory), "--threads", "1", "--num-slots", "8192"]
    command += ["--concurrency", "3", "--num-frames", "2", "--max-tokens", "30", "--resume"]
    chance, written = random.Random(7), set[bytes]()
    for _ in range(3):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        goal = len(written) + chance.randrange(1, 6)
        deadline_s = time.monotonic() + 90
        while len(whole_lines(target)) < goal:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        after = whole_lines(target)
        assert written <= after
        written = after
    done = [json.loads(line) for line in written]
    with Engine.from_config(
        EngineConfig(model=str(tiny_directory), threads=1, num_slots=8192)
    ) as engine:
        client = Counting(engine)
        ask = AskSettings(num_frames=2, max_tokens=30)
        settings = BatchSettings(mode=OutputMode.RESUME, ask=ask)
        answer_file(client, source, target, settings)
    records = [json.loads(line) for line in target.read_bytes().splitlines()]
    assert [record["line"] for record in records] == list(range(1, 41))
    assert len(client.asked) <= 40 - len(done)
    by_line = {record["line"]: record for record in records}
    assert all(by_line[record["line"]] == record for record in done)
