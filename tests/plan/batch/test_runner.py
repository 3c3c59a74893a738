"""A whole run over a scripted engine."""

import json
from pathlib import Path

import pytest
from support.scripted_client import ScriptedClient, question_of

from mmserve.batch import (
    Backoff,
    BatchSettings,
    OutputMode,
    Summary,
    answer_file,
    progress_path,
)
from mmserve.core import (
    Aborted,
    BadRequest,
    Broken,
    Busy,
    ContextTooLong,
    Finish,
    MediaRefused,
    RunnerFailed,
)

SOON = Backoff(first_s=0.001)


def write_rows(path: Path, *rows: object) -> Path:
    """A batch file; bytes are written as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def video_row(question: str, **fields: object) -> dict[str, object]:
    """A row about a clip."""
    return {"video": "a.mp4", "question": question} | fields


@pytest.fixture
def source(tmp_path) -> Path:
    """Thirty rows, the third of each three with two questions."""
    rows = [
        video_row(f"q{n}")
        if n % 3
        else {"video": "b.mp4", "questions": [f"q{n}a", f"q{n}b"], "id": f"row {n}"}
        for n in range(1, 31)
    ]
    return write_rows(tmp_path / "in.jsonl", *rows)


@pytest.fixture
def target(tmp_path) -> Path:
    """The output file."""
    return tmp_path / "out.jsonl"


def records(path: Path) -> list[dict]:
    """All records of an output file; every line must be one."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def run(client, source, target, mode=OutputMode.NEW, concurrency=4) -> Summary:
    """Answer `source` into `target`."""
    settings = BatchSettings(mode=mode, concurrency=concurrency, backoff=SOON)
    return answer_file(client, source, target, settings)


@pytest.mark.parametrize("concurrency", [1, 2, 7, 100])
def test_records_end_in_the_inputs_order(source, target, concurrency):
    """Line by line, then question by question, whatever the overlap, once all are there."""
    run(ScriptedClient(), source, target, concurrency=concurrency)
    keys = [(record["line"], record["question_index"]) for record in records(target)]
    assert keys == [(n, q) for n in range(1, 31) for q in range(1 if n % 3 else 2)]


def test_an_answer_record_says_everything(source, target):
    """Id, question, answer, frames, times and usage of a clip question."""
    run(ScriptedClient(), source, target)
    record = records(target)[3]
    usage, timing = record.pop("usage"), record.pop("timing_ms")
    assert record == {
        "id": "row 3",
        "line": 3,
        "question_index": 1,
        "question": "q3b",
        "answer": "Q3B",
        "frames_used": 2,
        "timestamps_s": [0.0, 0.5],
        "error": None,
    }
    assert (usage["prompt_tokens"], usage["cached_tokens"], timing["total"]) == (10, 4, 2.0)


def test_pictures_have_no_times(tmp_path, target):
    """For pictures, frames_used counts them and timestamps_s is null."""
    rows = write_rows(tmp_path / "in.jsonl", {"images": ["a.png", "b.png"], "question": "q"})
    run(ScriptedClient(), rows, target)
    assert (records(target)[0]["frames_used"], records(target)[0]["timestamps_s"]) == (2, None)


def test_a_rows_questions_are_handed_in_together(source, target):
    """No answer is waited for between the questions of a row."""
    client = ScriptedClient()
    seen: list[int] = []
    answer_file(
        client,
        source,
        target,
        BatchSettings(concurrency=1),
        lambda summary: seen.append(len(client.tickets)),
    )
    assert (seen[:4], seen[20:24]) == ([0, 1, 2, 3], [20, 22, 22, 24])


def test_the_overlap_is_bounded(source, target):
    """At most the concurrency plus one row's questions are under way."""
    client = ScriptedClient()
    most = 0

    def look(summary: Summary) -> None:
        nonlocal most
        most = max(most, len(client.tickets) - summary.answered)

    answer_file(client, source, target, BatchSettings(concurrency=5), look)
    assert 5 <= most <= 6


def test_the_summary_adds_up(source, target):
    """Counts of a clean run, tokens included."""
    summary = run(ScriptedClient(), source, target)
    assert (summary.total, summary.answered, summary.failed) == (40, 40, 0)
    assert (summary.prompt_tokens, summary.cached_tokens) == (400, 160)
    assert not summary.has_failed_rows


def test_bad_lines_are_error_records_with_their_line(tmp_path, target):
    """Cut JSON, a trailing comma and a blank line do not disturb the rest."""
    good = [json.dumps(video_row(f"q{n}")).encode() + b"\r" for n in range(1, 11)]
    good[3], good[5], good[7] = b'{"video": "a.mp4", ', b"", b'{"video": "a.mp4",}'
    summary = run(ScriptedClient(), write_rows(tmp_path / "in.jsonl", *good), target)
    failed = {record["line"]: record["error"] for record in records(target) if record["error"]}
    assert (summary.answered, summary.failed, list(failed)) == (7, 2, [4, 8])
    assert failed[4]["code"] == "bad_row"
    assert failed[8]["message"].startswith("line 8: not JSON")


def test_a_refused_row_does_not_end_the_run(tmp_path, target):
    """Two refusals in twenty rows: eighteen answers, and the summary says so."""

    def rule(request):
        question = question_of(request)
        if question in ("q7", "q12"):
            return ContextTooLong("prompt has 5120 tokens, limit 512", tokens=5120)
        return "fine"

    rows = write_rows(tmp_path / "in.jsonl", *[video_row(f"q{n}") for n in range(1, 21)])
    summary = run(ScriptedClient(rule), rows, target)
    failed = [record for record in records(target) if record["error"]]
    assert (summary.answered, summary.failed, summary.has_failed_rows) == (18, 2, True)
    assert [record["line"] for record in failed] == [7, 12]
    assert {record["error"]["code"] for record in failed} == {"context_too_long"}


@pytest.mark.parametrize(
    ("row", "fields", "place"),
    [
        (video_row("q", video="clips/no.mp4"), {}, "clips/no.mp4"),
        ({"images": ["a.png", "b.png"], "question": "q"}, {"index": 1}, "b.png"),
        ({"images": ["a.png"], "question": "q"}, {}, "a.png"),
    ],
)
def test_a_refused_medium_is_named_as_given(tmp_path, target, row, fields, place):
    """The message holds the path or address of the row."""
    error = MediaRefused("no such file", reason="fetch_failed", **fields)
    run(ScriptedClient(lambda request: error), write_rows(tmp_path / "in.jsonl", row), target)
    assert records(target)[0]["error"]["message"] == f"{place}: no such file"


def test_an_error_record_has_no_answer(tmp_path, target):
    """Readers that look at one field only agree: answer is null exactly when error is not."""
    fates = {
        "a": "text",
        "b": MediaRefused("x", reason="undecodable"),
        "c": Finish("error", error=RunnerFailed("x", step=3)),
        "d": Finish("abort"),
        "e": "",
    }
    rows = write_rows(tmp_path / "in.jsonl", *map(video_row, fates), [1, 2], {"id": None})
    run(ScriptedClient(lambda request: fates[question_of(request)]), rows, target)
    found = [(record["answer"] is None, record["error"] is None) for record in records(target)]
    good, bad = (False, True), (True, False)
    assert found == [good, bad, bad, bad, good, bad, bad]


def test_an_abort_has_its_own_code(tmp_path, target):
    """An answer that was stopped is an error, not a short answer."""
    rows = write_rows(tmp_path / "in.jsonl", video_row("q"))
    run(ScriptedClient(lambda request: Finish("abort")), rows, target)
    assert records(target)[0]["error"]["code"] == Aborted.code


def test_an_answer_cut_short_says_so(tmp_path, target):
    """An answer that reached max_tokens carries a note."""
    rows = write_rows(tmp_path / "in.jsonl", video_row("q"))
    run(ScriptedClient(lambda request: Finish("length")), rows, target)
    assert records(target)[0]["note"] == "the answer was cut at 0 tokens"


def test_rows_with_one_id_are_both_answered(tmp_path, target):
    """Equal and missing ids stay distinguishable by line."""
    rows = write_rows(
        tmp_path / "in.jsonl",
        video_row("a", id="x"),
        video_row("b", id="x"),
        video_row("c"),
        video_row("d"),
    )
    run(ScriptedClient(), rows, target)
    found = [(record["id"], record["line"], record["answer"]) for record in records(target)]
    assert found == [("x", 1, "A"), ("x", 2, "B"), ("line-3", 3, "C"), ("line-4", 4, "D")]


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("cut_bytes", [0, 1, 30])
def test_resume_asks_only_what_is_left(source, target, cut_bytes, has_index):
    """Of a cut output whose run had ended, with or without an index, the rest is asked."""
    run(ScriptedClient(), source, target)
    whole = target.read_bytes()
    lines = whole.splitlines(keepends=True)
    kept = b"".join(lines[:11])
    target.write_bytes(kept[: len(kept) - cut_bytes])
    if not has_index:
        progress_path(target).unlink()
    client = ScriptedClient()
    summary = run(client, source, target, OutputMode.RESUME)
    num_kept = 11 if not cut_bytes else 10
    assert target.read_bytes() == whole
    assert (len(client.tickets), summary.kept_answered) == (40 - num_kept, num_kept)


def test_resume_of_a_finished_run_asks_nothing(source, target):
    """Nothing is asked or written again."""
    run(ScriptedClient(), source, target)
    whole, client = target.read_bytes(), ScriptedClient()
    summary = run(client, source, target, OutputMode.RESUME)
    assert (client.tickets, target.read_bytes()) == ([], whole)
    assert (summary.num_done, summary.answered) == (40, 0)


def test_resume_within_a_row_asks_its_other_questions(source, target):
    """A row of which one question is done is finished, not repeated."""
    run(ScriptedClient(), source, target)
    target.write_bytes(b"".join(target.read_bytes().splitlines(keepends=True)[:3]))
    client = ScriptedClient()
    run(client, source, target, OutputMode.RESUME)
    assert client.questions.count("q3b") == 1
    assert "q3a" not in client.questions


def test_errors_count_as_done_unless_retried(tmp_path, target):
    """--resume keeps a failed question, --retry-errors asks it again and only it."""
    rows = write_rows(tmp_path / "in.jsonl", video_row("a"), video_row("b"), video_row("c"))
    bad = MediaRefused("gone", reason="fetch_failed")
    run(ScriptedClient(lambda r: bad if question_of(r) == "b" else "ok"), rows, target)
    client = ScriptedClient()
    assert run(client, rows, target, OutputMode.RESUME).has_failed_rows
    assert client.questions == []
    summary = run(client, rows, target, OutputMode.RETRY_ERRORS)
    assert (client.questions, summary.has_failed_rows) == (["b"], False)
    assert [record["line"] for record in records(target)] == [1, 2, 3]


def test_resume_refuses_another_input(tmp_path, target):
    """An output of other questions is not continued, and not touched."""
    run(ScriptedClient(), write_rows(tmp_path / "a.jsonl", video_row("a")), target)
    before, client = target.read_bytes(), ScriptedClient()
    other = write_rows(tmp_path / "b.jsonl", video_row("b"), video_row("c"))
    with pytest.raises(BadRequest, match="is of another input: line 1, question 0"):
        run(client, other, target, OutputMode.RESUME)
    assert (target.read_bytes(), client.tickets) == (before, [])


def test_retry_errors_refuses_another_input_untouched(tmp_path, target):
    """Error records of another input are not dropped."""
    bad = MediaRefused("gone", reason="fetch_failed")
    rows = write_rows(tmp_path / "a.jsonl", video_row("a"), video_row("b"))
    run(ScriptedClient(lambda r: bad if question_of(r) == "b" else "ok"), rows, target)
    before = target.read_bytes()
    other = write_rows(tmp_path / "b.jsonl", video_row("x"), video_row("b"))
    with pytest.raises(BadRequest, match="is of another input"):
        run(ScriptedClient(), other, target, OutputMode.RETRY_ERRORS)
    assert target.read_bytes() == before


def test_resume_refuses_a_shorter_input(tmp_path, target):
    """An output with records of lines that are gone is not continued."""
    rows = [video_row("a"), video_row("b")]
    run(ScriptedClient(), write_rows(tmp_path / "a.jsonl", *rows), target)
    with pytest.raises(BadRequest, match="1 of its questions are not in the input"):
        run(
            ScriptedClient(),
            write_rows(tmp_path / "b.jsonl", rows[0]),
            target,
            OutputMode.RESUME,
        )


def test_a_mended_line_is_asked_with_retry_errors(tmp_path, target):
    """A line that was no row, once mended, is answered and the rest is kept."""
    run(ScriptedClient(), write_rows(tmp_path / "a.jsonl", video_row("a"), b"{"), target)
    mended = write_rows(tmp_path / "b.jsonl", video_row("a"), video_row("b"))
    with pytest.raises(BadRequest):
        run(ScriptedClient(), mended, target, OutputMode.RESUME)
    client = ScriptedClient()
    run(client, mended, target, OutputMode.RETRY_ERRORS)
    assert client.questions == ["b"]


def test_the_input_is_never_the_output(source):
    """A slip of the keyboard does not destroy the rows."""
    before = source.read_bytes()
    with pytest.raises(BadRequest, match="same file"):
        run(ScriptedClient(), source, source, OutputMode.OVERWRITE)
    assert source.read_bytes() == before


def test_an_interrupt_cancels_what_is_under_way(source, target):
    """Ctrl-C leaves whole records behind and no question running."""
    client = ScriptedClient()

    def interrupt(summary: Summary) -> None:
        if summary.answered == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_file(client, source, target, BatchSettings(concurrency=4), interrupt)
    assert len(records(target)) == 5
    assert sorted(ticket.is_cancelled for ticket in client.tickets) == [False] * 5 + [True] * 3


def test_a_busy_engine_is_asked_again(tmp_path, target):
    """A refusal for lack of room is not the row's fault."""
    fates = iter([Busy("full", retry_after_s=0), Busy("full", retry_after_s=0), "late"])
    rows = write_rows(tmp_path / "in.jsonl", video_row("q"))
    run(ScriptedClient(lambda request: next(fates)), rows, target)
    assert records(target)[0]["answer"] == "late"


def test_an_engine_that_stays_busy_fails_the_row(tmp_path, target):
    """Nothing is tried endlessly."""
    rows = write_rows(tmp_path / "in.jsonl", video_row("q"))
    client = ScriptedClient(lambda request: Busy("full", retry_after_s=0))
    run(client, rows, target)
    assert (records(target)[0]["error"]["code"], len(client.tickets)) == ("busy", 10)


def test_a_dead_engine_ends_the_run(tmp_path, target):
    """Twenty failures in a row that are the engine's own end the run, unfinished."""
    rows = write_rows(tmp_path / "in.jsonl", *[video_row(f"q{n}") for n in range(50)])
    client = ScriptedClient(lambda request: RunnerFailed("device lost", step=1))
    with pytest.raises(Broken, match="failed 20 questions in a row") as caught:
        run(client, rows, target)
    assert "--retry-errors" in str(caught.value.hint)
    assert len(records(target)) == 19
