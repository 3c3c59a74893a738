"""The command line as a whole: help, version, errors and exit codes."""

import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.core import (
    BadRequest,
    Broken,
    MissingExtra,
    UnsupportedModel,
)

COMMANDS = ["demo", "serve", "ask", "video-qa", "models", "show"]


def failing(error: BaseException):
    """An opener whose engine does not start."""

    @contextmanager
    def open_engine(config):
        raise error
        yield

    return open_engine


def test_help_lists_every_command():
    """`mmserve --help` names all commands and explains the exit codes."""
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert [
        name for name in [*COMMANDS, "Exit codes: 0 done"] if name not in result.output
    ] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    """Each command's help can be shown, without an engine."""
    result = CliRunner().invoke(app, [command, "--help"], obj=failing(AssertionError()))
    assert result.exit_code == 0


def test_no_flag_name_is_cut_in_80_columns():
    """The help of the command with most flags shows their names whole."""
    result = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "80"})
    assert "--feature-cache-tokens" in result.output
    assert "…" not in result.output


def test_version():
    """`--version` prints the package's."""
    result = CliRunner().invoke(app, ["--version"])
    assert result.output.startswith("mmserve 0.")


def test_the_program_starts_without_torch_and_numpy():
    """Help must come at once: heavy packages are loaded only when an engine is made."""
    code = (
        "import sys; from mmserve.cli import app; app(['--help'], standalone_mode=False); "
        "print('heavy:', [m for m in ('torch', 'transformers', 'numpy', 'fastapi', 'PIL', 'av')"
        " if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_python_m_is_the_same_program():
    """`python -m mmserve --version` works."""
    done = subprocess.run(
        [sys.executable, "-m", "mmserve", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("mmserve ")


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (UnsupportedModel("no model at 'x'", hint="give a directory"), 1, "no model at 'x'"),
        (MissingExtra("needs gguf", hint='pip install "mmserve[smollm2]"'), 1, "[smollm2]"),
        (BadRequest("dtype is float8", field="dtype"), 2, "dtype is float8"),
        (Broken("the engine stopped"), 1, "the engine stopped"),
        (FileNotFoundError(2, "No such file or directory", "a.json"), 1, "a.json: no such"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_are_messages_with_a_code(error, code, text):
    """An error is told on stderr without a traceback, and has its exit code."""
    result = CliRunner().invoke(app, ["ask", "q"], obj=failing(error))
    assert (result.exit_code, result.stdout) == (code, "")
    assert text in result.stderr
    assert "Traceback" not in result.stderr


def test_an_error_and_its_hint_are_two_lines():
    """`error:` says what, `hint:` the way out."""
    error = UnsupportedModel("no model at 'x'", hint="give a directory")
    result = CliRunner().invoke(app, ["demo"], obj=failing(error))
    assert result.stderr == "error: no model at 'x'\nhint: give a directory\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["ask"],
        ["ask", "q", "--max-tokens", "0"],
        ["ask", "q", "--max-tokens", "many"],
        ["show", "kitchen"],
        ["video-qa", "does-not-exist.jsonl", "-o", "x"],
        ["serve", "--port", "first"],
        ["serve", "--policy", "magic"],
    ],
)
def test_wrong_use_is_exit_code_2(arguments):
    """Unknown commands, missing arguments and wrong values are usage errors."""
    result = CliRunner().invoke(app, arguments, obj=failing(AssertionError()))
    assert result.exit_code == 2


def test_show_prints_the_engines_drawing():
    """`show radix` asks the sample questions, then prints what the part draws."""
    client = ScriptedClient()
    result = CliRunner().invoke(app, ["show", "radix"], obj=lambda config: client)
    assert result.stdout == "a drawing of radix\n"
    assert len(client.tickets) == 10
