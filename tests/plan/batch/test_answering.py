"""How questions are handed in, and what becomes of failures."""

import json
import threading
from pathlib import Path

import pytest
from support.scripted_client import ScriptedClient, ScriptedTicket, question_of

from mmserve.batch import Backoff, BatchSettings, OutputMode, answer_file
from mmserve.batch.faults import is_transient
from mmserve.core import (
    Aborted,
    BackendFailed,
    Busy,
    CallTimeout,
    ContextTooLong,
    EngineDown,
    Finish,
    MediaRefused,
    Output,
    RunnerFailed,
    TextPart,
    Turn,
    Usage,
    VideoPart,
)

SOON = Backoff(first_s=0.001)


def write_rows(path: Path, *rows: object) -> Path:
    """A batch file."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def records(target: Path) -> list[dict]:
    """All records."""
    return [json.loads(line) for line in target.read_bytes().splitlines()]


@pytest.fixture
def target(tmp_path) -> Path:
    """The output file."""
    return tmp_path / "out.jsonl"


def rows_of_clips(path: Path, num: int) -> Path:
    """A row for each of so many clips."""
    return write_rows(path, *({"video": f"{n}.mp4", "question": f"q{n}"} for n in range(num)))


class Gate(ScriptedTicket):
    """A question that is answered when it is told to be."""

    def __init__(self, request, fate) -> None:
        super().__init__(request, fate)
        self.gate = threading.Event()

    def outputs(self):
        """As scripted, but later."""
        assert self.gate.wait(10)
        yield from super().outputs()

    def cancel(self) -> None:
        """Also lets the reader go."""
        super().cancel()
        self.gate.set()


class GatedClient(ScriptedClient):
    """Answers its second question at once, others when they are let through."""

    def submit(self, request):
        """A question that waits."""
        ticket = Gate(request, self.rule(request))
        self.tickets.append(ticket)
        if len(self.tickets) == 2:
            ticket.gate.set()
        return ticket


def test_a_record_is_written_as_soon_as_it_is_done(tmp_path, target):
    """A question that is answered first is on disk, though an older one is not answered."""
    client, live = GatedClient(), []

    def look(summary) -> None:
        if summary.answered:
            live.append([record["question"] for record in records(target)])
            client.tickets[0].gate.set()

    source = rows_of_clips(tmp_path / "in.jsonl", 2)
    answer_file(client, source, target, BatchSettings(concurrency=2), look)
    assert live == [["q1"], ["q1", "q0"]]
    assert [record["question"] for record in records(target)] == ["q0", "q1"]


def test_the_next_clips_are_prepared_and_no_more(tmp_path, target):
    """Each clip once, in order, at most `open_clips` ahead of what is handed in."""
    client, ahead = ScriptedClient(), []
    source = rows_of_clips(tmp_path / "in.jsonl", 9)

    def look(summary) -> None:
        ahead.append(len(client.prepared) - len(client.tickets))

    answer_file(client, source, target, BatchSettings(concurrency=1, open_clips=3), look)
    paths = [part.source.path for part in client.prepared]
    assert len(paths) == len(set(paths)) == 9
    assert max(ahead) == 3


def test_a_clip_of_many_rows_is_prepared_once(tmp_path, target):
    """Rows about one clip are one hint."""
    client = ScriptedClient()
    rows = [{"video": f"{n % 3}.mp4", "question": f"q{n}"} for n in range(30)]
    answer_file(client, write_rows(tmp_path / "in", *rows), target, BatchSettings())
    assert len(client.prepared) == 3


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Busy("x", retry_after_s=1), True),
        (EngineDown("x", retry_after_s=1), True),
        (CallTimeout("x", timeout_s=1), True),
        (BackendFailed("x", status=None), True),
        (BackendFailed("x", status=502), True),
        (BackendFailed("x", status=401), False),
        (BackendFailed("x", status=200), False),
        (MediaRefused("x", reason="fetch_failed", status=503), True),
        (MediaRefused("x", reason="fetch_failed", status=429), True),
        (MediaRefused("x", reason="fetch_failed", limit_s=10.0), True),
        (MediaRefused("x", reason="fetch_failed", status=404), False),
        (MediaRefused("x", reason="fetch_failed"), False),
        (MediaRefused("x", reason="undecodable"), False),
        (ContextTooLong("x"), False),
        (RunnerFailed("x", step=1), False),
        (Aborted("x"), False),
    ],
)
def test_only_what_may_pass_is_asked_again(error, expected):
    """Room, reach and faults of the other side pass; refusals do not."""
    assert is_transient(error) is expected


def test_waits_grow_and_differ():
    """Each wait is between half and all of its longest, which doubles up to a limit."""
    error, backoff = Busy("x"), Backoff(first_s=1.0, most_s=8.0)
    waits = [[backoff.wait_s(error, tries) for _ in range(50)] for tries in range(1, 7)]
    for longest, found in zip((1, 2, 4, 8, 8, 8), waits, strict=True):
        assert longest / 2 <= min(found) < max(found) <= longest
    assert backoff.wait_s(Busy("x", retry_after_s=5), 1) == 5
    assert backoff.wait_s(error, backoff.num_tries) is None


def test_others_go_on_while_one_waits(tmp_path, target):
    """A question that waits to be asked again holds up no other."""
    fates = iter([Busy("full", retry_after_s=0.05)])

    def rule(request):
        return next(fates, "late") if question_of(request) == "q0" else "soon"

    seen = []
    source = rows_of_clips(tmp_path / "in.jsonl", 6)
    answer_file(
        ScriptedClient(rule),
        source,
        target,
        BatchSettings(concurrency=2, backoff=SOON),
        lambda summary: seen.append(len(records(target)) and records(target)[-1]["question"]),
    )
    assert seen[-1] == "q0"
    assert len(records(target)) == 6


def test_max_errors_stops_the_run_and_it_is_taken_up(tmp_path, target):
    """One more than allowed ends it, with its record written; the others are asked later."""
    source = rows_of_clips(tmp_path / "in.jsonl", 9)
    client = ScriptedClient(lambda request: ContextTooLong("too long"))
    with pytest.raises(Aborted, match="3 failed, allowed are 2; last: too long"):
        answer_file(client, source, target, BatchSettings(concurrency=1, max_errors=2))
    assert len(records(target)) == 3
    again = ScriptedClient()
    answer_file(again, source, target, BatchSettings(mode=OutputMode.RESUME))
    assert len(again.tickets) == 6


def test_turns_of_a_conversation_follow_each_other(tmp_path, target):
    """Each is asked behind the answer to the one before, with all of them in the request."""

    def rule(request):
        return request.parts[-2].parts[-1].text.upper()

    client = ScriptedClient(rule)
    source = write_rows(tmp_path / "in.jsonl", {"video": "a.mp4", "turns": ["a", "b", "c"]})
    answer_file(client, source, target, BatchSettings())
    assert [record["answer"] for record in records(target)] == ["A", "B", "C"]
    turns = client.tickets[2].request.parts
    assert isinstance(turns[0].parts[0], VideoPart)
    assert [(turn.role, turn.parts) for turn in turns[1:]] == [
        ("assistant", (TextPart("A"),)),
        ("user", (TextPart("b"),)),
        ("assistant", (TextPart("B"),)),
        ("user", (TextPart("c"),)),
        ("assistant", ()),
    ]
    assert turns[-1] == Turn("assistant", (), is_open=True)


def test_a_failed_turn_ends_its_conversation_alone(tmp_path, target):
    """Turns behind it are errors that say so; --retry-errors goes on from the failed one."""

    def rule(request):
        text = request.parts[-2].parts[-1].text
        return ContextTooLong("too long") if text == "b" else text.upper()

    source = write_rows(tmp_path / "in.jsonl", {"video": "a.mp4", "turns": ["a", "b", "c"]})
    answer_file(ScriptedClient(rule), source, target, BatchSettings())
    codes = [record["error"] and record["error"]["code"] for record in records(target)]
    assert codes == [None, "context_too_long", "not_asked"]
    client = ScriptedClient(lambda request: request.parts[-2].parts[-1].text.upper())
    retry = BatchSettings(mode=OutputMode.RETRY_ERRORS)
    answer_file(client, source, target, retry)
    assert [record["answer"] for record in records(target)] == ["A", "B", "C"]
    assert len(client.tickets) == 2


class Sampled(ScriptedTicket):
    """A request whose sequences end in another order, one of them badly."""

    def outputs(self):
        """Sequence k says sk."""
        for index in reversed(range(self.request.num_sequences)):
            reason = "abort" if index == 1 else "stop"
            yield Output("r", index, f"s{index}", (), Usage(10), finish=Finish(reason))


class SamplingClient(ScriptedClient):
    """Draws samples."""

    def submit(self, request):
        """All of a request's samples."""
        self.tickets.append(Sampled(request, ""))
        return self.tickets[-1]


def test_samples_are_one_request_and_a_record_each(tmp_path, target):
    """Records carry their sample's index, and fail by themselves."""
    client = SamplingClient()
    source = write_rows(
        tmp_path / "in.jsonl", {"video": "a.mp4", "question": "q", "n": 3, "temperature": 1}
    )
    summary = answer_file(client, source, target, BatchSettings())
    found = [(record["sample_index"], record["answer"]) for record in records(target)]
    assert found == [(0, "s0"), (1, None), (2, "s2")]
    assert (summary.total, summary.failed, len(client.tickets)) == (3, 1, 1)
