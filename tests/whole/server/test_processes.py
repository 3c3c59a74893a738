"""`mmserve serve` as two processes: the same answers, and the truth when one is gone."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from support.oracle import png

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc"),
]
LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True, "temperature": 0}
SHM = Path("/dev/shm")


def parents() -> dict[int, int]:
    """The parent of every process that runs; ended ones do not count."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            found[int(stat.parent.name)] = int(parent)
    return found


def shared_names() -> set[Path]:
    """Shared memory with a name as programs in Python make it; other tests have semaphores."""
    return {path for path in SHM.iterdir() if not path.name.startswith(("sem.", "__KMP"))}


def until(is_true: Callable[[], object]) -> None:
    """Wait for something that must come; a test that hangs here has failed."""
    while not is_true():
        threading.Event().wait(0.02)


class Served:
    """A running `mmserve serve` of the small model."""

    def __init__(self, model: Path, *flags: str) -> None:
        command = [sys.executable, "-m", "mmserve", "serve", "--model", str(model)]
        command += ["--port", "0", "--num-slots", "8192", "--threads", "1", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        self.told: list[str] = []
        for line in self.process.stderr:
            self.told.append(line)
            if (found := re.search(r"on (http://\S+),", line)) is not None:
                break
        assert found is not None, self.told
        self.http = httpx.Client(
            base_url=found[1],
            trust_env=False,
            timeout=120,
            transport=httpx.HTTPTransport(retries=9),  # the address is told before it listens
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.told.extend(self.process.stderr)

    @property
    def engine(self) -> int:
        """The engine's process."""
        (pid,) = (pid for pid, parent in parents().items() if parent == self.process.pid)
        return pid

    def is_ready(self) -> bool:
        """What the health route says."""
        return self.http.get("/health").status_code == 200

    def plain(self, text: str = "hello", **fields: Any) -> httpx.Response:
        """A completion at once."""
        body = {"prompt": text, "max_tokens": 8, "temperature": 0, **fields}
        return self.http.post("/v1/completions", json=body)

    def stream(self, opened: ExitStack, **fields: Any) -> Iterator[str]:
        """The events of a long completion, after the first."""
        body = {"prompt": "hello", **LONG, "stream": True, **fields}
        asking = self.http.stream("POST", "/v1/completions", json=body)
        response = opened.enter_context(asking)
        assert response.status_code == 200
        events = (line[6:] for line in response.iter_lines() if line.startswith("data: "))
        next(events)
        return events

    def metric(self, name: str) -> float:
        """One number of the metrics; 0 if it is not told."""
        text = self.http.get("/metrics").text
        found = re.search(rf"^mmserve_{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def end(self) -> int:
        """Wait until it has ended; the exit code."""
        code = self.process.wait()
        self.reader.join()  # and with it whatever else writes there
        self.http.close()
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code


@pytest.fixture(scope="module")
def serve(tiny_directory: Path) -> Iterator[Callable[..., Served]]:
    """Starts servers of the small model, with flags; none of them outlives the tests."""
    servers = []

    def start(*flags: str) -> Served:
        servers.append(Served(tiny_directory, *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.end()


@pytest.fixture(scope="module")
def served(serve: Callable[..., Served]) -> Served:
    """A server that counts its engine as hung after ten seconds."""
    return serve("--engine-stuck-s", "10")


def test_answers_are_those_of_one_process(served: Served, server_url: str):
    """Greedy tokens with log-probabilities, options and token ids equal the engine's here."""
    body = {"text": "the band", "return_logprob": True, "top_logprobs_num": 2}
    body["sampling_params"] = {"max_new_tokens": 24, "temperature": 0}
    choices = {"text": "the", "choices": [" band", " sand"]}
    with httpx.Client(base_url=server_url, trust_env=False, timeout=120) as here:
        answers = [client.post("/generate", json=body).json() for client in (here, served.http)]
        chosen = [
            client.post("/generate", json=choices).json() for client in (here, served.http)
        ]
        ids = [
            client.post("/tokenize", json={"prompt": "the band"}).json()
            for client in (here, served.http)
        ]
    for one in answers:
        assert one["meta_info"]["completion_tokens"] == 24
    for name in ("output_token_logprobs", "output_top_logprobs", "finish_reason"):
        assert answers[1]["meta_info"][name] == answers[0]["meta_info"][name]
    assert answers[1]["text"] == answers[0]["text"]
    assert chosen[1]["text"] == chosen[0]["text"]
    assert ids[1] == ids[0]


def test_a_large_picture_leaves_nothing_behind(served: Served, server_url: str):
    """Its answer is that of one process, and neither memory nor descriptors stay taken."""
    noise = np.random.default_rng(3).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    content = png(Image.fromarray(noise))
    assert len(content) > 300_000
    url = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "what is it?"},
    ]
    body = {
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 8,
        "temperature": 0,
    }
    with httpx.Client(base_url=server_url, trust_env=False, timeout=120) as here:
        expected = here.post("/v1/chat/completions", json=body).json()["choices"]
    first = served.http.post("/v1/chat/completions", json=body).json()["choices"]
    assert first == expected
    names = shared_names()
    holders = [Path(f"/proc/{pid}/fd") for pid in (served.engine, served.process.pid)]
    before = [len(list(holder.iterdir())) for holder in holders]
    for _ in range(5):
        answer = served.http.post("/v1/chat/completions", json=body).json()
        assert answer["choices"] == expected
    assert [len(list(holder.iterdir())) for holder in holders] == before
    links = [str(link.readlink()) for holder in holders for link in holder.iterdir()]
    assert [link for link in links if "mmserve-media" in link] == []
    assert shared_names() == names


def test_aborted_streams_end_in_the_engine(served: Served):
    """Of twenty streams whose readers leave, none goes on."""
    name = 'finished_total{reason="abort"}'
    aborted = served.metric(name)
    with ThreadPoolExecutor(20) as pool:

        def begin_and_leave(number: int) -> None:
            with ExitStack() as opened:
                served.stream(opened, prompt=f"{number} hello")

        list(pool.map(begin_and_leave, range(20)))
    until(lambda: served.metric("running") + served.metric("waiting") == 0)
    assert served.metric(name) > aborted
    assert served.plain().status_code == 200


def test_a_killed_engine_is_told_and_replaced(served: Served):
    """Its stream gets an error event, its plain call 503, and the next engine answers."""
    before, first = served.plain().json()["choices"], served.engine
    restarts = served.metric("engine_restarts_total")
    with ExitStack() as opened, ThreadPoolExecutor(1) as pool:
        events = served.stream(opened)
        os.kill(first, signal.SIGSTOP)  # so that nothing ends before
        plain = pool.submit(served.plain)
        threading.Event().wait(0.5)
        os.kill(first, signal.SIGKILL)
        *_, last = events
        assert json.loads(last)["error"]["code"] == "engine_down"
        assert plain.result().status_code == 503
        assert int(plain.result().headers["Retry-After"]) >= 1
        assert plain.result().json()["error"]["code"] == "engine_down"
    assert served.http.get("/livez").status_code == 200
    assert served.http.get("/health").status_code == 503
    assert served.metric("engine_up") == 0
    until(served.is_ready)
    assert served.engine != first
    assert served.plain().json()["choices"] == before
    assert served.metric("engine_up") == 1
    assert served.metric("engine_restarts_total") == restarts + 1


def test_a_stopped_engine_counts_as_hung(served: Served):
    """An engine that does not run any more is noticed, ended and replaced."""
    before, first = served.plain().json()["choices"], served.engine
    with ExitStack() as opened:
        events = served.stream(opened)
        os.kill(first, signal.SIGSTOP)
        *_, last = events
        assert json.loads(last)["error"]["code"] == "engine_down"
    until(served.is_ready)
    assert first not in parents()
    assert served.plain().json()["choices"] == before


def test_a_signal_lets_running_requests_end(serve: Callable[..., Served]):
    """SIGTERM refuses new requests and waits for the stream; no process stays."""
    server = serve()
    engine = server.engine
    with ExitStack() as opened:
        events = server.stream(opened)
        os.kill(engine, signal.SIGSTOP)  # so that it still runs
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.http.get("/health").status_code == 503)
        refused = server.plain()
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "shutting_down"
        assert "Retry-After" in refused.headers
        assert server.http.get("/livez").status_code == 200
        os.kill(engine, signal.SIGCONT)
        *_, last, done = events
    assert done == "[DONE]"
    assert json.loads(last)["choices"][0]["finish_reason"] == "length"
    assert server.end() == 0
    assert engine not in parents()


def test_a_second_signal_waits_for_nothing(serve: Callable[..., Served]):
    """With an engine that hangs and a stream that waits, two signals end both processes."""
    server = serve("--drain-s", "3600", "--engine-stuck-s", "3600")
    engine = server.engine
    with ExitStack() as opened:
        events = server.stream(opened)
        os.kill(engine, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        until(lambda: server.http.get("/health").status_code == 503)
        server.process.send_signal(signal.SIGTERM)
        *_, last = events
        assert "error" in json.loads(last)
        assert server.end() == 0
    assert engine not in parents()


def test_requests_that_outlast_the_drain_are_told(serve: Callable[..., Served]):
    """When the time is up, a stream gets an error event before the server ends."""
    server = serve("--drain-s", "0")
    with ExitStack() as opened:
        streams = [server.stream(opened, n=8) for _ in range(2)]
        server.process.send_signal(signal.SIGTERM)
        for events in streams:
            *_, last = events
            assert json.loads(last)["error"]["code"] == "shutting_down"
    assert server.end() == 0


def test_a_model_that_is_not_there_fails_as_in_one_process():
    """The message and the exit code are those of a server with its engine inside."""
    ends = []
    for flags in ([], ["--in-process"]):
        command = [sys.executable, "-m", "mmserve", "serve", "--model", "nonsense", *flags]
        done = subprocess.run([*command, "--port", "0"], capture_output=True, text=True)
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert ends[0][0] == 1
    assert "no model at 'nonsense'" in ends[0][2]


def test_the_server_process_has_no_torch(served: Served):
    """Only the engine's process loads it."""
    maps = Path(f"/proc/{served.process.pid}/maps").read_text()
    assert "libtorch" not in maps
    assert "libtorch" in Path(f"/proc/{served.engine}/maps").read_text()
