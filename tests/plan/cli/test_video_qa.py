"""`mmserve video-qa`."""

import json
from dataclasses import replace

import pytest
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

from mmserve.batch import Summary
from mmserve.cli import app
from mmserve.cli.batch_report import settings_told
from mmserve.cli.batch_summary import summary_line
from mmserve.cli.flags import Settings
from mmserve.cli.video_qa import RunFlags
from mmserve.core import MediaRefused, RunnerFailed, UnsupportedModel


@pytest.fixture
def rows(tmp_path):
    """Three good rows."""
    path = tmp_path / "in.jsonl"
    lines = [json.dumps({"video": "a.mp4", "question": name}) for name in "abc"]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def output(tmp_path):
    """The output file."""
    return tmp_path / "out.jsonl"


def run(rows, output, *flags: str, client: ScriptedClient | None = None):
    """The result of the command."""
    own = client or ScriptedClient()
    arguments = ["video-qa", str(rows), "-o", str(output), *flags]
    return CliRunner().invoke(app, arguments, obj=lambda config: own)


def refuse_b(request):
    """A rule: b's clip is missing."""
    if question_of(request) == "b":
        return MediaRefused("no such file", reason="fetch_failed")
    return "fine"


def test_all_rows_answered_is_exit_code_0(rows, output):
    """Records are in the file, the summary on stderr, nothing on stdout."""
    result = run(rows, output)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("3 answered, 0 failed; ")
    assert len(output.read_text().splitlines()) == 3


def test_failed_rows_are_exit_code_3(rows, output):
    """Finished, but not all answered."""
    result = run(rows, output, client=ScriptedClient(refuse_b))
    assert (result.exit_code, result.stderr[:21]) == (3, "2 answered, 1 failed;")


def test_quiet_says_nothing(rows, output):
    """With --quiet stderr is empty, and the exit code still tells."""
    result = run(rows, output, "--quiet", client=ScriptedClient(refuse_b))
    assert (result.exit_code, result.output) == (3, "")


def test_an_existing_output_is_wrong_use(rows, output):
    """Refused with the way out, before anything is asked."""
    run(rows, output)
    client = ScriptedClient()
    result = run(rows, output, client=client)
    assert (result.exit_code, client.tickets) == (2, [])
    assert "hint: --resume continues that run, --overwrite starts again" in result.stderr


@pytest.mark.parametrize(
    ("flag", "asked"),
    [("--resume", []), ("--retry-errors", ["b"]), ("--overwrite", list("abc"))],
)
def test_flags_choose_what_is_asked_again(rows, output, flag, asked):
    """Nothing, failed rows, or everything."""
    run(rows, output, client=ScriptedClient(refuse_b))
    client = ScriptedClient()
    run(rows, output, flag, client=client)
    assert client.questions == asked


def test_a_finished_run_needs_no_engine(rows, output):
    """Resuming it loads no model, and still tells of failed rows."""
    run(rows, output, client=ScriptedClient(refuse_b))

    def no_engine(config):
        raise AssertionError

    arguments = ["video-qa", str(rows), "-o", str(output), "--resume"]
    result = CliRunner().invoke(app, arguments, obj=no_engine)
    assert result.exit_code == 3
    assert "0 answered, 0 failed, 3 kept from before (1 of them failed)" in result.stderr


def test_an_engine_that_does_not_load_costs_no_records(rows, output):
    """--overwrite empties the output only once there is an engine to fill it."""
    run(rows, output)
    before = output.read_bytes()

    def no_engine(config):
        raise UnsupportedModel("no model")

    arguments = ["video-qa", str(rows), "-o", str(output), "--overwrite"]
    assert CliRunner().invoke(app, arguments, obj=no_engine).exit_code == 1
    assert output.read_bytes() == before


def test_resume_and_overwrite_exclude_each_other(rows, output):
    """Contrary flags are wrong use."""
    assert run(rows, output, "--resume", "--overwrite").exit_code == 2


def test_a_broken_engine_is_exit_code_1(rows, output):
    """A run that could not finish is told from one with failed rows."""
    lines = [json.dumps({"video": "a.mp4", "question": "q"})] * 30
    rows.write_text("\n".join(lines))
    client = ScriptedClient(lambda request: RunnerFailed("device lost", step=1))
    assert run(rows, output, client=client).exit_code == 1


def test_settings_of_silent_rows(rows, output):
    """--num-frames and --max-tokens hold for rows without their own."""
    client = ScriptedClient()
    run(rows, output, "--num-frames", "5", "--max-tokens", "7", client=client)
    request = client.tickets[0].request
    assert (request.parts[0].parts[0].num_frames, request.sampling.max_new_tokens) == (5, 7)


def test_the_summary_line_of_a_resumed_run():
    """Kept records are told apart from new ones, and the cache's share is a percentage."""
    summary = Summary(
        total=30,
        answered=18,
        failed=2,
        kept_answered=9,
        kept_failed=1,
        prompt_tokens=4000,
        cached_tokens=3000,
        seconds=1.25,
    )
    assert summary_line(summary) == (
        "18 answered, 2 failed, 10 kept from before (1 of them failed); 1.2 s; "
        "3,000 of 4,000 prompt tokens from cache (75%)"
    )
    assert summary_line(replace(summary, tokens_least=990)).endswith(
        "(75%); 1,000 computed, the least possible is 990"
    )


def test_a_report_is_written_and_told(rows, output, tmp_path):
    """--report makes the page, and stderr says where; the records are as without it."""
    place = tmp_path / "run.html"
    result = run(rows, output, "--report", str(place), client=ScriptedClient(refuse_b))
    assert result.exit_code == 3
    assert "report: " in result.stderr
    assert "Finished, with failed rows" in place.read_text()


def test_a_broken_run_has_a_report(rows, output, tmp_path):
    """It says that it is not finished, and why."""
    rows.write_text("\n".join([json.dumps({"video": "a.mp4", "question": "q"})] * 30))
    place = tmp_path / "run.html"
    client = ScriptedClient(lambda request: RunnerFailed("device lost", step=1))
    assert run(rows, output, "--report", str(place), client=client).exit_code == 1
    page = place.read_text()
    assert "Not finished: <bdi>" in page
    assert "device lost" in page


def test_an_interrupted_run_has_a_report(rows, output, tmp_path):
    """It says so, and what was answered until then is in it."""

    def interrupt(request):
        if question_of(request) == "c":
            raise KeyboardInterrupt
        return "fine"

    place = tmp_path / "run.html"
    flags = ("--report", str(place), "--concurrency", "1")
    assert run(rows, output, *flags, client=ScriptedClient(interrupt)).exit_code == 130
    page = place.read_text()
    assert "Not finished: <bdi>it was interrupted" in page
    assert "fine" in page


def test_a_report_tells_no_keys(rows, output, tmp_path):
    """Settings are in the page, a key and a password are not."""
    given = {"url": "http://me:word@host:1", "api_key": "s3cret", "concurrency": 32}
    told = settings_told(Settings({RunFlags: given}), (RunFlags,))
    assert told == [("url", "http://host:1"), ("concurrency", "32")]


def test_a_report_without_a_place_is_wrong_use(rows, output, tmp_path):
    """Refused before anything is asked, with no output made."""
    result = run(rows, output, "--report", str(tmp_path / "no" / "run.html"))
    assert (result.exit_code, output.exists()) == (2, False)


def test_a_report_in_the_place_of_the_progress_is_wrong_use(rows, output):
    """It would put an end to --resume."""
    result = run(rows, output, "--report", f"{output}.progress")
    assert (result.exit_code, output.exists()) == (2, False)


def test_a_dry_run_writes_nothing(rows, output, tmp_path):
    """The plan is on stdout, no output is made, and --json is one object."""
    result = run(rows, output, "--dry-run", client=ScriptedClient())
    assert (result.exit_code, result.stderr) == (0, "")
    assert "questions" in result.stdout
    told = json.loads(run(rows, output, "--dry-run", "--json").stdout)
    assert (told["rows"], told["questions"], told["clips"]) == (3, 3, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("flags", [("--json",), ("--api-key", "k")])
def test_a_flag_without_the_one_it_belongs_to_is_wrong_use(rows, output, flags):
    """Rather than without effect; no output is made."""
    result = run(rows, output, *flags)
    assert (result.exit_code, output.exists()) == (2, False)


def test_a_dry_run_asks_turns_by_themselves(rows, output):
    """The answers before a turn are not known, which the forecast says."""
    rows.write_text('{"video": "a.mp4", "turns": ["a", "b", "c"]}\n')
    result = run(rows, output, "--dry-run", client=ScriptedClient())
    assert (result.exit_code, result.exception) == (0, None)
    assert "Of 1 conversations, the turns before a question are not counted" in result.stdout


def test_a_dry_run_names_faulty_rows(rows, output):
    """With their lines."""
    rows.write_text('{"video": "a.mp4", "question": "a"}\n\n{"video": [red]}\n')
    result = run(rows, output, "--dry-run")
    assert "1 faulty" in result.stdout
    assert "line 3: not JSON" in result.stdout
