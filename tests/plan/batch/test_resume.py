"""Taking a run up again: what the index knows, and what it refuses."""

import json
from pathlib import Path

import pytest
from support.scripted_client import ScriptedClient, question_of

from mmserve.batch import (
    AskSettings,
    BatchRun,
    BatchSettings,
    OutputMode,
    Summary,
    answer_file,
    progress_path,
)
from mmserve.core import BadRequest, MediaRefused

RESUME = BatchSettings(mode=OutputMode.RESUME, concurrency=2)


def write_rows(path: Path, questions, **fields: object) -> Path:
    """Rows about two clips in turn."""
    rows = [
        {"video": f"{'ab'[n % 2]}.mp4", "question": question} | fields
        for n, question in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def source(tmp_path) -> Path:
    """Ten rows with characters of several bytes."""
    return write_rows(tmp_path / "in.jsonl", [f"вопрос {n}" for n in range(10)])


@pytest.fixture
def target(tmp_path) -> Path:
    """The output file."""
    return tmp_path / "out.jsonl"


def stopped(source: Path, target: Path, after: int) -> None:
    """A run that is interrupted after so many answers."""

    def interrupt(summary: Summary) -> None:
        if summary.answered == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_file(ScriptedClient(), source, target, BatchSettings(concurrency=2), interrupt)


def questions(target: Path) -> list[str]:
    """Of all records, in their order."""
    return [json.loads(line)["question"] for line in target.read_bytes().splitlines()]


@pytest.mark.parametrize("cut_bytes", [0, 1, 60, 150, 10_000])
def test_a_cut_output_is_mended_without_asking(source, target, cut_bytes):
    """Wherever the output of a stopped run was cut, its records come back from the index."""
    stopped(source, target, after=6)
    content = target.read_bytes()
    target.write_bytes(content[: max(len(content) - cut_bytes, 0)])
    client = ScriptedClient()
    summary = answer_file(client, source, target, RESUME)
    assert (len(client.tickets), summary.kept_answered) == (4, 6)
    assert questions(target) == [f"вопрос {n}" for n in range(10)]


def test_appended_rows_are_answered(source, target):
    """Behind a finished run, only new rows are asked, and nothing is refused."""
    answer_file(ScriptedClient(), source, target, BatchSettings())
    write_rows(source, [*[f"вопрос {n}" for n in range(10)], "new"])
    client = ScriptedClient()
    answer_file(client, source, target, RESUME)
    assert client.questions == ["new"]
    assert len(questions(target)) == 11


def test_other_settings_are_refused_by_name(source, target):
    """The message says what was and what is, and nothing is changed."""
    answer_file(ScriptedClient(), source, target, BatchSettings())
    before, client = target.read_bytes(), ScriptedClient()
    settings = BatchSettings(mode=OutputMode.RESUME, ask=AskSettings(max_tokens=7, fps=2.0))
    with pytest.raises(BadRequest) as caught:
        answer_file(client, source, target, settings)
    assert "fps was None, is now 2.0, max_tokens was 128, is now 7" in caught.value.message
    assert (target.read_bytes(), client.tickets) == (before, [])


def test_settings_may_change_while_nothing_is_kept(source, target):
    """Where every question failed, they are asked again as they should have been."""
    bad = ScriptedClient(lambda request: MediaRefused("x", reason="undecodable"))
    answer_file(bad, source, target, BatchSettings())
    ask, client = AskSettings(max_tokens=7), ScriptedClient()
    answer_file(client, source, target, BatchSettings(mode=OutputMode.RETRY_ERRORS, ask=ask))
    assert len(client.tickets) == 10


def test_another_model_is_refused(source, target):
    """Answers of two models do not get into one file."""
    stopped(source, target, after=3)
    client = ScriptedClient()
    client.model = type("Model", (), {"fingerprint": b"other", "image_token_id": 1})()
    with pytest.raises(BadRequest, match="model_fingerprint was"):
        answer_file(client, source, target, RESUME)
    assert client.tickets == []


def test_a_row_that_changed_beside_its_question_is_refused(source, target):
    """The line is named; rows without a record may change."""
    stopped(source, target, after=6)
    line = min(json.loads(raw)["line"] for raw in target.read_bytes().splitlines())
    write_rows(source, [f"вопрос {n}" for n in range(10)], max_tokens=3)
    with pytest.raises(BadRequest, match=f"line {line} has changed"):
        answer_file(ScriptedClient(), source, target, RESUME)


def test_an_index_of_another_output_is_refused(source, target, tmp_path):
    """Index and output must tell of one run."""
    answer_file(ScriptedClient(), source, target, BatchSettings())
    other = write_rows(tmp_path / "other.jsonl", ["x"])
    answer_file(ScriptedClient(), other, tmp_path / "other.out", BatchSettings())
    (tmp_path / "other.out").replace(target)
    with pytest.raises(BadRequest, match="of different runs: they disagree about line 1"):
        answer_file(ScriptedClient(), source, target, RESUME)


def test_a_new_run_does_not_drop_an_unfinished_one(source, target):
    """An index with records that are nowhere else is not overwritten by accident."""
    stopped(source, target, after=6)
    target.unlink()
    with pytest.raises(BadRequest, match="holds the records of a run that has not ended"):
        BatchRun(source, target, BatchSettings())
    answer_file(ScriptedClient(), source, target, RESUME)
    assert len(questions(target)) == 10


def test_a_finished_index_is_small_and_does_not_stand_in_the_way(source, target):
    """It keeps no text of rows or records, and a new run begins where the output is gone."""
    answer_file(ScriptedClient(), source, target, BatchSettings())
    assert "ВОПРОС".encode() not in progress_path(target).read_bytes()
    target.unlink()
    client = ScriptedClient()
    answer_file(client, source, target, BatchSettings())
    assert len(client.tickets) == 10


@pytest.mark.parametrize(
    "mode", [OutputMode.OVERWRITE, OutputMode.RESUME, OutputMode.RETRY_ERRORS]
)
def test_nothing_changes_before_the_run_begins(source, target, mode):
    """A run that fails at its start leaves output and index as they were, half line and all."""

    def rule(request):
        is_bad = question_of(request) == "вопрос 3"
        return MediaRefused("x", reason="undecodable") if is_bad else "fine"

    answer_file(ScriptedClient(rule), source, target, BatchSettings())
    content = target.read_bytes() + b'{"id": '
    target.write_bytes(content)
    BatchRun(source, target, BatchSettings(mode=mode)).close()
    assert target.read_bytes() == content
    client = ScriptedClient()
    summary = answer_file(client, source, target, RESUME)
    assert (client.tickets, summary.kept_answered, summary.kept_failed) == ([], 9, 1)


def test_a_foreign_index_is_refused(source, target):
    """A file that is no index is left alone, with a way out."""
    progress_path(target).write_bytes(b"notes of somebody, longer than nothing" * 20)
    with pytest.raises(BadRequest, match="does not tell how far the run got"):
        BatchRun(source, target, BatchSettings())
