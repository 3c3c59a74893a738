"""A fleet of real servers: groups stay whole, files are sent once, losses cost no answer."""

import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.batch import AskSettings, Fleet, Row, read_answer, request_of
from mmserve.cli import app
from mmserve.core import (
    BackendFailed,
    BadRequest,
    BytesSource,
    SamplingParams,
    ServerConfig,
    TextPart,
    Turn,
)
from mmserve.core import Request as CoreRequest
from mmserve.server import RunningServer

TESTS = Path(__file__).parents[2]
SLOW_SERVER = """
import sys, time
from support.scripted_client import ScriptedClient, question_of
from mmserve.server import RunningServer

def rule(request):
    time.sleep(0.1)
    return question_of(request).upper()

with RunningServer(ScriptedClient(rule)) as server:
    print(server.url, flush=True)
    sys.stdin.read()
"""


def clip_in(folder: Path, name: str = "a.mp4") -> str:
    """The path of a new file that is worth an upload."""
    path = folder / name
    path.write_bytes(name.encode() * 1024)
    return str(path)


def requests_about(place: str, *questions: str, line: int = 1):
    """A request for each question about a clip."""
    row = Row(line=line, row_id=f"r{line}", questions=questions, video=place)
    return [request_of(row, index, AskSettings()) for index in range(len(questions))]


def test_groups_are_spread_and_stay_whole(tmp_path):
    """Each clip's questions are answered by one server, and both servers have some."""
    clients = [ScriptedClient(), ScriptedClient()]
    requests = [
        request
        for n in range(12)
        for request in requests_about(clip_in(tmp_path, f"{n}.mp4"), *"abc", line=n)
    ]
    with RunningServer(clients[0]) as one, RunningServer(clients[1]) as two:
        with Fleet((f"{one.url},{two.url}",), concurrency=8) as fleet:
            tickets = [fleet.submit(request) for request in requests]
            answers = Counter(read_answer(ticket).text for ticket in tickets)
            counts = fleet.counts()
        left = [httpx.get(f"{s.url}/v1/files").json()["data"] for s in (one, two)]
    assert answers == {"A": 12, "B": 12, "C": 12}
    clips = [
        Counter(ticket.request.parts[0].parts[0].source for ticket in client.tickets)
        for client in clients
    ]
    assert set(clips[0].values()) == set(clips[1].values()) == {3}
    assert len(clips[0]) + len(clips[1]) == 12
    assert [count.answered for count in counts] == [3 * len(clip) for clip in clips]
    assert [count.uploads for count in counts] == [len(clip) for clip in clips]
    assert left == [[], []]


def test_a_file_that_the_server_lost_is_sent_again(tmp_path):
    """The questions after it are answered all the same."""
    client, place = ScriptedClient(), clip_in(tmp_path)
    first, second = requests_about(place, "a", "b")
    with RunningServer(client) as server, Fleet((server.url,)) as fleet:
        read_answer(fleet.submit(first))
        files = httpx.get(f"{server.url}/v1/files").json()["data"]
        httpx.delete(f"{server.url}/v1/files/{files[0]['id']}")
        assert read_answer(fleet.submit(second)).text == "B"
        assert fleet.counts()[0].uploads == 2
    sources = {ticket.request.parts[0].parts[0].source for ticket in client.tickets}
    assert sources == {BytesSource(Path(place).read_bytes())}


def test_all_sampling_arrives():
    """Seed, number of answers and the rest reach the engine as the row has them."""
    sampling = SamplingParams(
        max_new_tokens=7, temperature=0.5, top_p=0.9, seed=3, stop=("x",), min_p=0.1
    )
    request = CoreRequest(
        request_id="r",
        parts=(Turn("user", (TextPart("a"),)), Turn("assistant", (), is_open=True)),
        sampling=sampling,
    )
    client = ScriptedClient()
    with RunningServer(client) as server, Fleet((server.url,)) as fleet:
        read_answer(fleet.submit(request))
    assert client.tickets[0].request.sampling == sampling


def test_a_server_killed_midway_costs_no_answer(tmp_path):
    """What it had under way is asked of the other; each question has one answer."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW_SERVER],
        cwd=TESTS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as doomed:
        url = doomed.stdout.readline().strip()
        with (
            RunningServer(ScriptedClient()) as server,
            Fleet((url, server.url), concurrency=8) as fleet,
        ):
            tickets = [
                fleet.submit(request)
                for n in range(20)
                for request in requests_about(clip_in(tmp_path, f"{n}.mp4"), f"q{n}", line=n)
            ]
            while not fleet.counts()[0].answered:
                time.sleep(0.01)
            doomed.kill()
            answers = [read_answer(ticket).text for ticket in tickets]
            counts = fleet.counts()
    assert answers == [f"Q{n}" for n in range(20)]
    assert (counts[0].is_up, counts[0].losses, counts[0].answered > 0) == (False, 1, True)
    assert counts[0].answered + counts[1].answered == 20


def test_a_server_that_comes_back_is_asked_again():
    """It is probed, and taken in; with nobody up the error says so at once."""
    request = requests_about("http://host/a.mp4", "a")[0]
    news = []
    with RunningServer(ScriptedClient()) as server:
        fleet = Fleet((server.url,), on_change=news.append, first_probe_s=0.02)
        port = int(server.url.rpartition(":")[2])
        read_answer(fleet.submit(request))
    with fleet:
        with pytest.raises(BackendFailed, match="cannot reach"):
            read_answer(fleet.submit(request))
        with RunningServer(ScriptedClient(), ServerConfig(port=port)):
            deadline = time.monotonic() + 5
            while not fleet.counts()[0].is_up and time.monotonic() < deadline:
                time.sleep(0.01)
            assert read_answer(fleet.submit(request)).text == "A"
    words = ("is not asked any more", "answers again")
    assert [word in sentence for word, sentence in zip(words, news, strict=True)] == [True] * 2


def test_a_refusal_stays_with_its_question():
    """A row's own fault is told once and moves nothing."""
    with RunningServer(ScriptedClient()) as server, Fleet((server.url,)) as fleet:
        ticket = fleet.submit(requests_about("ftp://host/a.mp4", "a")[0])
        with pytest.raises(BadRequest, match="address"):
            read_answer(ticket)
        assert (fleet.counts()[0].refused, fleet.counts()[0].is_up) == (1, True)


def test_servers_of_two_models_are_no_fleet():
    """Answers of one run come from one model; both are named."""
    other = ScriptedClient()
    other.model = replace(other.model, name="other")
    with (
        RunningServer(ScriptedClient()) as one,
        RunningServer(other) as two,
        pytest.raises(BadRequest, match=r"'other'.*'scripted'"),
    ):
        Fleet((one.url, two.url))


def test_a_file_over_two_servers(tmp_path):
    """`video-qa --url U1,U2` tells each server's share; a store needs a permission."""
    rows, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"video": clip_in(tmp_path, f"{n}.mp4"), "questions": ["a", "b"]} for n in range(8)
    ]
    lines.append({"video": "s3://bucket/a.mp4", "question": "c"})
    rows.write_text("\n".join(map(json.dumps, lines)))
    with RunningServer(ScriptedClient()) as one, RunningServer(ScriptedClient()) as two:
        arguments = ["video-qa", str(rows), "-o", str(output), "--url", f"{one.url},{two.url}"]
        result = CliRunner().invoke(app, arguments)
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert result.exit_code == 3
    assert Counter(record["answer"] for record in records) == {"A": 8, "B": 8, None: 1}
    error = next(record["error"] for record in records if record["error"])
    assert "s3://bucket/a.mp4" in error["message"]
    assert "--allow-store s3://bucket/" in error["message"]
    assert f"{one.url}: " in result.stderr
    assert f"{two.url}: " in result.stderr
