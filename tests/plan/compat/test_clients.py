"""The outside clients' list, their processes and their report; no client and no network."""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

import compat
from compat.checks import CHECKS, CLIENTS, Check
from compat.environments import kits_of
from compat.outcomes import Outcome, has_passed, last_line, run_check, summary_of, table_of
from compat.sglang_clients import chosen

SCRIPTS = Path(compat.__file__).parent / "inside"


def outcome(result, *, needs_knowledge=False, error=""):
    """An outcome of some test."""
    check = Check(client="kits", name="a.B.test_c", needs_knowledge=needs_knowledge)
    return Outcome(check=check, result=result, seconds=1.26, error=error)


def test_every_check_has_its_script_and_name():
    """Names are unique within a client, and each client has a script of its name."""
    names = [(check.client, check.name) for check in CHECKS]
    assert len(set(names)) == len(names)
    assert {client for client, _ in names} == set(CLIENTS)
    assert all((SCRIPTS / f"{client}.py").exists() for client in CLIENTS)


def test_every_program_is_written():
    """The programs named in the list are those of the script."""
    source = (SCRIPTS / "programs.py").read_text()
    functions = {
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)
    }
    for check in CHECKS:
        if check.client == "programs":
            name, _, rule = check.name.partition("select_")
            assert (f"{name}select" if rule else name) in functions
            assert not rule or f'"{rule}"' in source


def test_scripts_do_not_import_the_server():
    """What runs in a client's environment knows neither mmserve nor this package."""
    for script in SCRIPTS.glob("*.py"):
        tree = ast.parse(script.read_text())
        imported = {
            alias.name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        assert not imported & {"mmserve", "compat", "benchmarks"}


def test_the_eight_programs_without_knowledge_must_pass():
    """The frontend's programs that any model passes are those that decide the exit status."""
    needed = {
        check.name
        for check in CHECKS
        if check.client == "frontend" and not check.needs_knowledge and not check.why_not
    }
    assert needed == {
        "mt_bench",
        "select",
        "expert_answer",
        "stream",
        "parallel_decoding",
        "parallel_encoding",
        "regex",
        "dtype_gen",
    }


@pytest.mark.parametrize("name", ["programs", "fork_join", "AbortAllMixin"])
def test_checks_are_chosen_by_client_test_or_kit(name):
    """A name picks what it names and nothing else."""
    found = chosen([name])
    assert found
    assert all(name in (c.client, c.name, *c.name.split(".")) for c in found)
    assert len(chosen([])) == len(CHECKS)


def test_a_name_of_nothing_is_refused():
    """A misspelt test does not pass by not running."""
    with pytest.raises(ValueError, match="nothing is called kitz"):
        chosen(["kits", "kitz"])


@pytest.mark.parametrize(
    ("code", "result", "error"),
    [
        ("print('fine')", "pass", ""),
        ("print('so'); raise ValueError('not so')", "fail", "ValueError: not so"),
        ("print('begun', flush=True); import time; time.sleep(60)", "timeout", "begun"),
    ],
)
def test_a_process_gives_an_outcome(tmp_path, code, result, error):
    """Status, limit and last line become the outcome; the process is gone after it."""
    (tmp_path / "kits.py").write_text(code)
    limit_s = 60.0 if result != "timeout" else 1.0
    check = Check(client="kits", name="one", limit_s=limit_s)
    found = run_check(check, Path(sys.executable), tmp_path, "http://127.0.0.1:1")
    assert (found.result, found.error) == (result, "" if result == "pass" else error)


def test_knowledge_and_what_cannot_run_do_not_fail_the_run():
    """Only a test that any model passes can fail the run, by failing or by time."""
    fine = [outcome("pass"), outcome("skipped"), outcome("fail", needs_knowledge=True)]
    assert has_passed(fine)
    assert not has_passed([*fine, outcome("fail")])
    assert not has_passed([*fine, outcome("timeout")])


def test_the_summary_counts_by_need():
    """Tests are counted by whether they need knowledge; the skipped stand apart."""
    found = [outcome("pass"), outcome("timeout"), outcome("fail", needs_knowledge=True)]
    assert summary_of([*found, outcome("skipped")]) == {
        "any_model_tests": 2,
        "any_model_passed": 1,
        "good_model_tests": 1,
        "good_model_passed": 0,
        "skipped": 1,
    }


def test_the_table_shows_errors_as_they_are():
    """Brackets in an error are text, not styles."""
    console = Console(width=160, record=True, file=io.StringIO())
    console.print(table_of([outcome("fail", error="[2024] [/red] no")]))
    text = console.export_text()
    assert "[2024] [/red] no" in text
    assert "1.3" in text


def test_the_last_line_that_says_something():
    """The error is found where its message has lines; empty lines are passed over."""
    assert last_line("begun\nValueError: no\nnumber\n") == "ValueError: no"
    assert last_line("a\n  b  \n\n") == "b"
    assert last_line("") == ""
    assert len(last_line("x" * 999)) == 200


def test_only_the_kits_leave_the_wheel(tmp_path):
    """Of a wheel's files only kits are written, flat, and stale ones go."""
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("a_kit.py", "other.py", "sub/b_kit.txt"):
            archive.writestr(f"sglang/test/kits/{name}", "x")
        archive.writestr("sglang/srt/c_kit.py", "x")
    (tmp_path / "kits").mkdir()
    (tmp_path / "kits" / "old_kit.py").touch()
    kits_of(wheel, tmp_path / "kits")
    assert [path.name for path in (tmp_path / "kits").iterdir()] == ["a_kit.py"]
