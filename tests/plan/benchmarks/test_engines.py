"""The suite's talk with other engines: requests, refusals, time limits, lists of packages."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from benchmarks.engines import (
    ENGINES,
    EngineAbsent,
    EngineFailed,
    EngineSpec,
    Job,
    Worker,
    open_worker,
)
from benchmarks.engines.install import LISTS, Installer, environment_names, make, pinned
from benchmarks.engines.worker import ROOT, start

COUNTING = '''
"""An engine that answers with the lengths of prompts; it is noisy and forgets."""
import os, subprocess, sys, time
from benchmarks.engines.serve_loop import Command, answer_of, serve


class Counting:
    def __init__(self):
        self.num_seen = 0

    def load(self, model, threads, options):
        if options.get("refuse"):
            raise ValueError("this model is not for me\\nat all")
        print("noise on standard output")
        subprocess.run(["echo", "noise of a child"])
        return f"{model.name}-{threads}-{options}"

    def run(self, jobs, *, at_once):
        answers = []
        for job in jobs:
            if job["text"] == "sleep":
                time.sleep(60)
            if job["text"] == "die":
                print("last words", file=sys.stderr, flush=True)
                os._exit(3)
            self.num_seen += 1
            ids = [self.num_seen, len(job["text"]), int(at_once)]
            answers.append(
                answer_of(job, ids, "text", first_token_s=0.5, num_prompt_tokens=7)
            )
        return answers

    def forget(self):
        self.num_seen = 0

    def close(self):
        pass

    def server(self, model, threads, options):
        if options.get("broken"):
            return Command([sys.executable, "-c", "raise SystemExit(4)"])
        words = [sys.executable, "-m", "http.server", "{port}", "--bind", "127.0.0.1"]
        return Command(words, ready="/")


serve(Counting())
'''


@pytest.fixture
def worker(tmp_path: Path):
    """A worker of the counting engine, in this interpreter."""
    script = tmp_path / "counting.py"
    script.write_text(COUNTING)
    spec = EngineSpec(name="counting", module="", environment=None, can=frozenset({"text"}))
    command = ["env", f"PYTHONPATH={ROOT}", sys.executable, str(script)]
    with Worker(spec, command, tmp_path / "log" / "counting.log") as worker:
        yield worker


def job(name: str, text: str) -> Job:
    """A job for three tokens."""
    return Job(id=name, text=text, max_tokens=3)


def test_answers_come_back_as_they_were_given(worker: Worker) -> None:
    """What an engine says of each job arrives, typed and by its job's id."""
    loaded = worker.load(Path("/some/model"), threads=2, options={"bits": 8})
    ran = worker.run([job("a", "one"), job("b", "three")], at_once=True)
    assert loaded.version == "model-2-{'bits': 8}"
    assert [answer.token_ids for answer in ran.answers] == [(1, 3, 1), (2, 5, 1)]
    assert ran.by_id["b"].first_token_s == 0.5
    assert ran.by_id["b"].num_prompt_tokens == 7
    assert ran.by_id["b"].num_tokens == 3
    assert ran.seconds >= 0


def test_noise_of_an_engine_goes_to_its_log(worker: Worker) -> None:
    """What an engine and its children print is no answer and stands in the log."""
    worker.load(Path("m"), threads=1)
    worker.forget()
    noise = worker.log.read_text()
    assert "noise on standard output" in noise
    assert "noise of a child" in noise


def test_forgetting_starts_anew(worker: Worker) -> None:
    """`forget` reaches the engine, and what follows is answered as by a fresh one."""
    worker.load(Path("m"), threads=1)
    first = worker.run([job("a", "x")], at_once=False).answers
    worker.forget()
    assert worker.run([job("a", "x")], at_once=False).answers == first


def test_a_refused_model_is_an_absent_engine(worker: Worker) -> None:
    """A model that does not load raises the reason in one line; the worker goes on."""
    with pytest.raises(EngineAbsent, match=r"ValueError: this model is not for me$"):
        worker.load(Path("m"), threads=1, options={"refuse": True})
    assert worker.load(Path("m"), threads=1).version == "m-1-{}"


def test_an_engine_that_dies_says_its_last_line(worker: Worker) -> None:
    """The end of a process raises its status and the last line of its log, once and for all."""
    with pytest.raises(EngineFailed, match="status 3: last words"):
        worker.run([job("a", "die")], at_once=False)
    with pytest.raises(EngineFailed, match="has ended"):
        worker.forget()


def test_an_engine_that_hangs_is_ended(worker: Worker) -> None:
    """Past its limit a request raises, and the process is gone."""
    started = time.monotonic()
    with pytest.raises(EngineFailed, match=r"run took over 0\.5 s"):
        worker.run([job("a", "sleep")], at_once=False, limit_s=0.5)
    assert time.monotonic() - started < 20
    assert worker._process.poll() is not None


def test_a_server_answers_and_ends_with_its_worker(worker: Worker) -> None:
    """`serve` returns an address that answers at once; `quit` ends the server too."""
    worker.load(Path("m"), threads=1, options={"serve_only": True})
    url = worker.serve()
    assert httpx.get(url).status_code == 200
    group = worker._process.pid
    worker.quit()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_a_server_that_ends_is_told(worker: Worker) -> None:
    """A server that does not start raises its status."""
    worker.load(Path("m"), threads=1, options={"serve_only": True, "broken": True})
    with pytest.raises(EngineFailed, match="ended with status 4"):
        worker.serve()


@pytest.mark.parametrize("spec", ENGINES, ids=lambda spec: spec.name)
def test_an_absent_environment_gives_a_reason(spec: EngineSpec, tmp_path: Path) -> None:
    """Without its environment an engine is absent with a reason; the project's own is there."""
    if spec.environment is None:
        assert spec.python(tmp_path) == Path(sys.executable)
        return
    with pytest.raises(EngineAbsent, match="make bench-env"):
        start(spec, log=tmp_path / "log", environments=tmp_path)
    (tmp_path / f"{spec.environment}.reason").write_text("no compiler\n")
    with pytest.raises(EngineAbsent, match=r"^no compiler$"):
        start(spec, log=tmp_path / "log", environments=tmp_path)


def test_a_missing_package_gives_a_reason(tmp_path: Path) -> None:
    """An environment that lacks an engine's package is named with it."""
    spec = replace(ENGINES[0], packages=("json", "no_such_package"))
    with pytest.raises(EngineAbsent, match="no_such_package"):
        start(spec, log=tmp_path / "log")


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    """Only engines of the table open."""
    with pytest.raises(KeyError):
        open_worker("no such engine", log=tmp_path / "log")


def test_each_engine_has_its_module_and_its_list() -> None:
    """Every engine's worker file exists, and every environment is named by one engine."""
    folder = LISTS.parent
    assert [spec.name for spec in ENGINES if not (folder / f"{spec.module}.py").is_file()] == []
    named = {spec.environment for spec in ENGINES} - {None}
    assert sorted(named) == environment_names()


@pytest.mark.parametrize("name", environment_names())
def test_each_list_pins_its_engine(name: str) -> None:
    """Every line of a list pins a version, no package stands twice, no host is named."""
    path = LISTS / f"{name}.txt"
    lines = [line for line in path.read_text().splitlines() if line and line[0] != "#"]
    assert len(pinned(path)) == len(lines) > 10
    assert "//" not in path.read_text()


def test_a_line_without_a_version_is_refused(tmp_path: Path) -> None:
    """A list with a range raises, and says which line."""
    path = tmp_path / "loose.txt"
    path.write_text("# comment\none==1.0\ntwo>=2\n")
    with pytest.raises(ValueError, match="'two>=2' pins no version"):
        pinned(path)


def test_an_environment_that_fails_leaves_its_reason(tmp_path: Path) -> None:
    """A failed installation writes the last line of what was said, and is no error."""
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\necho first >&2\necho 'no wheel for this machine' >&2\nexit 1\n")
    uv.chmod(0o755)
    why = make("vllm", Installer(uv, (), 1), tmp_path / "environments")
    assert why == "no wheel for this machine"
    spec = next(one for one in ENGINES if one.name == "vllm")
    with pytest.raises(EngineAbsent, match="no wheel for this machine"):
        spec.python(tmp_path / "environments")
