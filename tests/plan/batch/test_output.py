"""The output file: modes, locks, and what a killed run leaves."""

import json
import multiprocessing
from pathlib import Path

import pytest

from mmserve.batch import OutputFile, OutputMode, Record, record_line
from mmserve.batch.job import Kept, asked_digest
from mmserve.core import BadRequest, Busy, Timing, Usage


def record(line: int, *, index: int = 0) -> Record:
    """A record whose text has characters of several bytes."""
    return Record(
        row_id=f"r{line}",
        line=line,
        question_index=index,
        question="что?",
        answer=f"ответ {line}",
    )


def kept(line: int) -> Kept:
    """The same, as it goes to a file."""
    content = record_line(record(line))
    return Kept((line, 0, 0), asked_digest(f"r{line}", "что?"), False, content)


def keys(output: OutputFile) -> list[tuple[int, int]]:
    """Line and question of each record that the file holds."""
    return [one.key[:2] for one in output.kept()]


def read(path: Path) -> list[Kept]:
    """What a run that is resumed finds."""
    with OutputFile(path, OutputMode.RESUME) as output:
        return list(output.kept())


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
        output.write(kept(1))
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
        assert keys(output) == []


def test_overwrite_drops_everything(tmp_path):
    """With overwrite even a foreign file is emptied."""
    path = tmp_path / "out.jsonl"
    path.write_text("something else\n")
    with OutputFile(path, OutputMode.OVERWRITE) as output:
        output.replace(())
        output.write(kept(1))
    assert path.read_bytes() == record_line(record(1))


def test_resume_without_a_file_is_a_new_run(tmp_path):
    """Nothing to take up is no error."""
    with OutputFile(tmp_path / "out.jsonl", OutputMode.RESUME) as output:
        assert keys(output) == []


def test_resume_knows_what_is_done(tmp_path):
    """Kept records are found by line and question index."""
    path = filled(tmp_path / "out.jsonl", record(1), record(1, index=1), record(3))
    with OutputFile(path, OutputMode.RESUME) as output:
        assert keys(output) == [(1, 0), (1, 1), (3, 0)]


def test_a_half_line_is_seen_wherever_it_broke(tmp_path):
    """Wherever the last line is cut, also inside a character, only whole lines are records."""
    whole, half = record_line(record(1)), record_line(record(2))
    path = tmp_path / "out.jsonl"
    for cut in range(len(half)):
        path.write_bytes(whole + half[:cut])
        with OutputFile(path, OutputMode.RESUME) as output:
            assert keys(output) == [(1, 0)]
            assert output.num_whole == (None if cut else 1)


@pytest.mark.parametrize("content", [b"notes\n", b"notes", b"\n", b'{"a": 1}\n', b"[]\n"])
def test_resume_never_cuts_a_foreign_file(tmp_path, content):
    """A file this tool did not write is refused and left alone."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadRequest, match=r"line 1 of output .* is no record"):
        read(path)
    assert path.read_bytes() == content


def test_resume_refuses_damage_in_the_middle(tmp_path):
    """A broken line with good ones after it was not left by a kill."""
    path = tmp_path / "out.jsonl"
    content = record_line(record(1)) + b'{"id": \n' + record_line(record(2))
    path.write_bytes(content)
    with pytest.raises(BadRequest, match="line 2 of output"):
        read(path)
    assert path.read_bytes() == content


def test_records_out_of_order_are_seen(tmp_path):
    """Read or written, a record before the last one's place takes the file out of order."""
    with OutputFile(tmp_path / "out.jsonl", OutputMode.NEW) as output:
        found = []
        for line in (1, 3, 2):
            output.write(kept(line))
            found.append(output.is_in_order)
    assert found == [True, True, False]


def test_replacing_is_whole_and_leaves_nothing_beside(tmp_path):
    """The new records are there, writing goes on behind them, and no spare file stays."""
    path = filled(tmp_path / "out.jsonl", record(2), record(1))
    with OutputFile(path, OutputMode.RESUME) as output:
        output.replace([record_line(record(1)), record_line(record(2))])
        output.write(kept(3))
    assert path.read_bytes() == b"".join(map(record_line, [record(1), record(2), record(3)]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("mode", list(OutputMode))
def test_two_runs_cannot_write_one_file(tmp_path, mode):
    """The second run is refused, whatever its mode, and changes nothing."""
    path = tmp_path / "out.jsonl"
    with OutputFile(path, OutputMode.NEW) as output:
        output.write(kept(1))
        with pytest.raises(Busy, match="another run is writing"):
            OutputFile(path, mode)
        assert path.read_bytes() == record_line(record(1))


def test_the_lock_holds_after_the_file_was_replaced(tmp_path):
    """The new file is locked before it takes the old one's place."""
    path = filled(tmp_path / "out.jsonl", record(1))
    with OutputFile(path, OutputMode.RESUME) as output:
        output.replace(())
        with pytest.raises(Busy):
            OutputFile(path, OutputMode.RESUME)


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
