"""The output file: modes, locks, and what a killed run leaves."""

import json
import multiprocessing
from pathlib import Path

import pytest

from mmserve.batch import OutputFile, OutputMode, Record, record_line
from mmserve.core import BadRequest, Busy, Timing, Usage


def record(line: int, *, index: int = 0, error: tuple[str, str] | None = None) -> Record:
    """A record whose text has characters of several bytes."""
    answer = None if error else f"ответ {line}"
    return Record(
        row_id=f"r{line}",
        line=line,
        question_index=index,
        question="что?",
        answer=answer,
        error=error,
    )


def filled(path: Path, *records: Record) -> Path:
    """`path` with these records."""
    path.write_bytes(b"".join(map(record_line, records)))
    return path


def test_a_record_has_the_documented_fields():
    """Exactly the fields of the contract, in order."""
    fields = json.loads(record_line(record(1)))
    assert list(fields) == [
        "id",
        "line",
        "question_index",
        "question",
        "answer",
        "frames_used",
        "timestamps_s",
        "usage",
        "timing_ms",
        "error",
    ]


def test_usage_and_timing_are_objects():
    """Counts and milliseconds come by name."""
    made = Record(
        row_id=1,
        line=1,
        question_index=0,
        question="q",
        answer="",
        usage=Usage(9, cached_tokens=4),
        timing=Timing(total=1.23456),
    )
    fields = json.loads(record_line(made))
    assert (fields["usage"]["cached_tokens"], fields["timing_ms"]["total"]) == (4, 1.235)


def test_half_a_surrogate_pair_can_be_written():
    """A text without UTF-8 is still one line of valid JSON."""
    made = Record(row_id="x", line=1, question_index=0, question="a\ud800b")
    assert json.loads(record_line(made).decode("utf-8"))["question"] == "a\ud800b"


def test_each_record_is_on_disk_at_once(tmp_path):
    """Another reader sees a record as soon as it is written."""
    path = tmp_path / "out.jsonl"
    with OutputFile(path, OutputMode.NEW) as output:
        output.write(record(1))
        assert path.read_bytes() == record_line(record(1))


def test_new_refuses_records(tmp_path):
    """A run never appends to another by accident, and says how to go on."""
    path = filled(tmp_path / "out.jsonl", record(1))
    with pytest.raises(BadRequest) as caught:
        OutputFile(path, OutputMode.NEW)
    assert "--resume" in str(caught.value.hint)
    assert path.read_bytes() == record_line(record(1))


def test_new_takes_an_empty_file(tmp_path):
    """A file without content is a new one."""
    path = filled(tmp_path / "out.jsonl")
    with OutputFile(path, OutputMode.NEW) as output:
        assert output.kept == {}


def test_overwrite_drops_everything(tmp_path):
    """With overwrite even a foreign file is emptied."""
    path = tmp_path / "out.jsonl"
    path.write_text("something else\n")
    with OutputFile(path, OutputMode.OVERWRITE) as output:
        output.begin()
        output.write(record(1))
    assert path.read_bytes() == record_line(record(1))


def test_resume_without_a_file_is_a_new_run(tmp_path):
    """Nothing to take up is no error."""
    with OutputFile(tmp_path / "out.jsonl", OutputMode.RESUME) as output:
        assert output.kept == {}


def test_resume_knows_what_is_done(tmp_path):
    """Kept records are found by line and question index."""
    path = filled(tmp_path / "out.jsonl", record(1), record(1, index=1), record(3))
    with OutputFile(path, OutputMode.RESUME) as output:
        assert list(output.kept) == [(1, 0), (1, 1), (3, 0)]


def test_resume_cuts_a_half_line_wherever_it_broke(tmp_path):
    """Wherever the last line is cut, also inside a character, whole lines stay."""
    whole, half = record_line(record(1)), record_line(record(2))
    path = tmp_path / "out.jsonl"
    for cut in range(len(half)):
        path.write_bytes(whole + half[:cut])
        with OutputFile(path, OutputMode.RESUME) as output:
            assert list(output.kept) == [(1, 0)]
            output.begin()
            output.write(record(2))
        assert path.read_bytes() == whole + half


@pytest.mark.parametrize("content", [b"notes\n", b"notes", b"\n", b'{"a": 1}\n', b"[]\n"])
def test_resume_never_cuts_a_foreign_file(tmp_path, content):
    """A file this tool did not write is refused and left alone."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"line 1 of output .* is no record"):
        OutputFile(path, OutputMode.RESUME)
    assert path.read_bytes() == content


def test_resume_refuses_damage_in_the_middle(tmp_path):
    """A broken line with good ones after it was not left by a kill."""
    path = tmp_path / "out.jsonl"
    content = record_line(record(1)) + b'{"id": \n' + record_line(record(2))
    path.write_bytes(content)
    with pytest.raises(BadRequest, match="line 2 of output"):
        OutputFile(path, OutputMode.RESUME)
    assert path.read_bytes() == content


def test_resume_keeps_error_records(tmp_path):
    """A failed question counts as done."""
    path = filled(tmp_path / "out.jsonl", record(1, error=("busy", "x")))
    with OutputFile(path, OutputMode.RESUME) as output:
        assert output.kept[1, 0].is_error


def test_retry_errors_drops_error_records(tmp_path):
    """Answers stay in order, errors and a half line go, and writing goes on behind them."""
    path = filled(tmp_path / "out.jsonl", record(1), record(2, error=("busy", "x")), record(3))
    with path.open("ab") as file:
        file.write(record_line(record(4))[:20])
    with OutputFile(path, OutputMode.RETRY_ERRORS) as output:
        assert list(output.kept) == [(1, 0), (3, 0)]
        output.begin()
        output.write(record(2))
    assert path.read_bytes() == b"".join(map(record_line, [record(1), record(3), record(2)]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("mode", list(OutputMode))
def test_two_runs_cannot_write_one_file(tmp_path, mode):
    """The second run is refused, whatever its mode, and changes nothing."""
    path = tmp_path / "out.jsonl"
    with OutputFile(path, OutputMode.NEW) as output:
        output.write(record(1))
        with pytest.raises(Busy, match="another run is writing"):
            OutputFile(path, mode)
        assert path.read_bytes() == record_line(record(1))


def test_the_lock_holds_after_retry_errors_replaced_the_file(tmp_path):
    """The new file is locked before it takes the old one's place."""
    path = filled(tmp_path / "out.jsonl", record(1, error=("busy", "x")))
    with OutputFile(path, OutputMode.RETRY_ERRORS) as output:
        output.begin()
        with pytest.raises(Busy):
            OutputFile(path, OutputMode.RESUME)


@pytest.mark.parametrize(
    "mode", [OutputMode.OVERWRITE, OutputMode.RESUME, OutputMode.RETRY_ERRORS]
)
def test_nothing_changes_before_the_run_begins(tmp_path, mode):
    """A run that fails at its start leaves the old output as it was, half line and all."""
    path = filled(tmp_path / "out.jsonl", record(1), record(2, error=("busy", "x")))
    content = path.read_bytes() + record_line(record(3))[:20]
    path.write_bytes(content)
    OutputFile(path, mode).close()
    assert path.read_bytes() == content


def hold(path: Path, ready, over) -> None:
    """Hold the file until told."""
    with OutputFile(path, OutputMode.RESUME):
        ready.set()
        over.wait(20)


def test_a_dead_runs_lock_is_free(tmp_path):
    """The lock of a killed process goes with it."""
    context = multiprocessing.get_context("fork")
    ready, over = context.Event(), context.Event()
    path = tmp_path / "out.jsonl"
    process = context.Process(target=hold, args=(path, ready, over))
    process.start()
    assert ready.wait(20)
    with pytest.raises(Busy):
        OutputFile(path, OutputMode.RESUME)
    process.kill()
    process.join()
    OutputFile(path, OutputMode.RESUME).close()
