"""The batch tool against a server: real HTTP, a scripted engine behind it."""

import base64
import json
import socket
import threading

import pytest
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

from mmserve.batch import AskSettings, Fleet, Row, read_answer, request_of
from mmserve.cli import app
from mmserve.core import (
    Aborted,
    BackendFailed,
    Busy,
    Constraint,
    ContextTooLong,
    Finish,
    MediaRefused,
    RunnerFailed,
    ServerConfig,
    TextPart,
    UrlSource,
    VideoPart,
)
from mmserve.server import RunningServer


@pytest.fixture
def clip(tmp_path):
    """A file that stands for a clip."""
    path = tmp_path / "a.mp4"
    path.write_bytes(b"clip")
    return path


def row(clip, **fields: object) -> Row:
    """A row about the clip."""
    base = {"line": 1, "row_id": "r", "questions": ("what?", "who?"), "video": str(clip)}
    return Row(**(base | fields))


def answer_of(client: ScriptedClient, asked: Row):
    """The answer to the row's first question through a server in front of `client`."""
    with RunningServer(client) as server, Fleet((server.url,)) as endpoint:
        return read_answer(endpoint.submit(request_of(asked, 0, AskSettings())))


def test_an_answer_comes_whole(clip):
    """Text, usage, timing and the frames taken arrive as in process."""
    answer = answer_of(ScriptedClient(), row(clip))
    assert (answer.text, answer.report.clips[0].timestamps_s) == ("WHAT?", (0.0, 0.5))
    assert (answer.last.usage.prompt_tokens, answer.last.usage.cached_tokens) == (10, 4)
    assert answer.last.timing.total == 2.0


def test_the_server_gets_the_row(clip):
    """File, sampling, question, length and constraint arrive; the prompt has the same form."""
    client = ScriptedClient()
    constraint = Constraint("json_schema", '{"type": "null"}')
    fields = {"num_frames": 4, "start_s": 0.5, "end_s": 2.0, "max_tokens": 9}
    answer_of(client, row(clip, constraint=constraint, **fields))
    request = client.tickets[0].request
    url = "data:video/mp4;base64," + base64.b64encode(b"clip").decode()
    video = VideoPart(UrlSource(url), num_frames=4, start_s=0.5, end_s=2.0)
    assert request.parts[0].parts == (video, TextPart("what?"))
    assert request.parts[1].is_open
    assert (request.sampling.max_new_tokens, request.sampling.temperature) == (9, 0.0)
    assert request.sampling.constraint == constraint


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint("choices", json.dumps(["a.b", "(c) d|e", "f-g é"], ensure_ascii=False)),
        Constraint("regex", "a.b"),
        Constraint("ebnf", 'root ::= "a"'),
    ],
)
def test_constraints_arrive_as_they_are(clip, constraint):
    """Options, patterns and grammars are those of the row."""
    client = ScriptedClient()
    answer_of(client, row(clip, constraint=constraint))
    assert client.tickets[0].request.sampling.constraint == constraint


def test_addresses_are_fetched_by_the_server(clip):
    """An address goes as it is."""
    client = ScriptedClient()
    answer_of(client, row(clip, video="http://host/a.mp4"))
    video = client.tickets[0].request.parts[0].parts[0]
    assert video.source == UrlSource("http://host/a.mp4")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextTooLong("prompt has 900 tokens, limit 512"), ContextTooLong),
        (MediaRefused("no decodable stream", reason="undecodable"), MediaRefused),
        (Busy("full", retry_after_s=3), Busy),
        (RunnerFailed("device lost", step=1), BackendFailed),
    ],
)
def test_errors_keep_their_kind(clip, error, kind):
    """A refusal is a refusal of the same class; the server's own faults are told apart."""
    with pytest.raises(kind) as caught:
        answer_of(ScriptedClient(lambda request: error), row(clip))
    assert error.message.split(",")[0] in caught.value.message or kind is BackendFailed


def test_an_aborted_answer_is_no_answer(clip):
    """An answer that was stopped at the server raises."""
    with pytest.raises(Aborted):
        answer_of(ScriptedClient(lambda request: Finish("abort")), row(clip))


@pytest.mark.parametrize("name", ["missing.mp4", ".", "empty.mp4"])
def test_unreadable_files_are_refused_here(tmp_path, name):
    """A missing file, a directory, an empty file: named, and nothing is sent."""
    (tmp_path / "empty.mp4").write_bytes(b"")
    client = ScriptedClient()
    with pytest.raises(MediaRefused, match=name):
        answer_of(client, row(tmp_path / name))
    assert client.tickets == []


def test_no_server_is_told_at_once():
    """Nothing listens there: one clear error with a way out."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(BackendFailed, match="cannot reach") as caught:
            Fleet((url,))
    assert caught.value.hint == "is the server running?"


def test_the_api_key_is_sent_and_a_wrong_one_is_not_the_rows_fault(clip):
    """With the key answers come; without it the error is the backend's."""
    config = ServerConfig(port=0, api_key="secret")
    request = request_of(row(clip), 0, AskSettings())
    with RunningServer(ScriptedClient(), config) as server:
        with Fleet((server.url,), "secret") as endpoint:
            assert read_answer(endpoint.submit(request)).text == "WHAT?"
        with pytest.raises(BackendFailed), Fleet((server.url,), "wrong") as endpoint:
            read_answer(endpoint.submit(request))


def test_a_cancelled_question_is_over_at_once(clip):
    """Questions still waiting here for a free connection are aborted without being sent."""
    client = ScriptedClient()
    gate = threading.Event()

    def rule(request):
        gate.wait(10)
        return "late"

    client.rule = rule
    requests = [request_of(row(clip, line=n), 0, AskSettings()) for n in range(5)]
    with RunningServer(client) as server, Fleet((server.url,), concurrency=1) as endpoint:
        tickets = [endpoint.submit(request) for request in requests]
        for ticket in tickets[1:]:
            ticket.cancel()
        gate.set()
        assert read_answer(tickets[0]).text == "late"
        for ticket in tickets[1:]:
            with pytest.raises(Aborted):
                read_answer(ticket)
    assert len(client.tickets) == 1


def test_a_whole_file_over_http(tmp_path, clip):
    """`video-qa --url`: answers and errors as in process, exit code 3."""
    rows, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        {"video": str(clip), "questions": ["a", "b"]},
        {"video": "no.mp4", "question": "c"},
    ]
    lines += [{"video": str(clip), "question": f"q{n}"} for n in range(20)]
    rows.write_text("\n".join(map(json.dumps, lines)))

    def rule(request):
        question = question_of(request)
        return ContextTooLong("too long") if question == "q7" else question.upper()

    with RunningServer(ScriptedClient(rule)) as server:
        arguments = ["video-qa", str(rows), "-o", str(output), "--url", server.url]
        result = CliRunner().invoke(app, [*arguments, "--concurrency", "4"])
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert result.exit_code == 3
    assert [r["answer"] for r in records[:3]] == ["A", "B", None]
    assert records[2]["error"]["code"] == "media_refused"
    assert records[2]["error"]["message"].startswith("no.mp4: ")
    assert [r["line"] for r in records if r["error"]] == [2, 10]
    assert records[0]["timestamps_s"] == [0.0, 0.5]


def test_engine_flags_belong_to_the_server(tmp_path):
    """--url with flags of an engine is wrong use, not ignored in silence."""
    rows = tmp_path / "in.jsonl"
    rows.write_text("")
    arguments = ["video-qa", str(rows), "-o", str(tmp_path / "o"), "--url", "http://x"]
    result = CliRunner().invoke(app, [*arguments, "--model", "m"])
    assert (result.exit_code, "--url is given" in result.stderr) == (2, True)
