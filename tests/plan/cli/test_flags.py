"""Flags made of settings classes."""

from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import pytest
import typer
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.flags import ENGINE, SERVER, FlagGroup, Settings, with_settings
from mmserve.core import EngineConfig, MediaConfig, SchedConfig, ServerConfig


@dataclass(frozen=True)
class Sample:
    """A settings class with every type of field."""

    number: int = field(default=3, metadata={"doc": "a number", "low": 2})
    off: bool = field(default=False, metadata={"doc": "an off switch"})
    on: bool = field(default=True, metadata={"doc": "count"})
    names: tuple[str, ...] = field(default=(), metadata={"doc": "some names"})
    maybe: float | None = field(default=None, metadata={"doc": "perhaps"})
    port: int | None = field(default=None, metadata={"doc": "may be 0"})
    hidden: int = 7


def read(*arguments: str) -> Sample | str:
    """The settings that these arguments give, or the output of a refusal."""
    got = []
    small = typer.Typer()

    @small.command()
    @with_settings((FlagGroup(Sample, "Sample"),))
    def command(*, settings: Settings) -> None:
        got.append(settings.of(Sample))

    result = CliRunner().invoke(small, list(arguments))
    return got[0] if got else result.output


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Sample()),
        (["--number", "5"], Sample(number=5)),
        (["--off"], Sample(off=True)),
        (["--no-on"], Sample(on=False)),
        (["--names", "a", "--names", "b"], Sample(names=("a", "b"))),
        (["--maybe", "0.5"], Sample(maybe=0.5)),
        (["--port", "0"], Sample(port=0)),
    ],
)
def test_flags_become_settings(arguments, expected):
    """Every type of field can be set, and silence gives the class's defaults."""
    assert read(*arguments) == expected


@pytest.mark.parametrize(
    "arguments",
    [["--number", "1"], ["--maybe", "-1"], ["--port", "-1"], ["--hidden", "8"], ["--on"]],
)
def test_values_below_the_limit_and_undocumented_fields_are_refused(arguments):
    """Limits hold, and what has no doc is no flag."""
    assert isinstance(read(*arguments), str)


def test_help_shows_doc_and_default():
    """Help is the field's own documentation."""
    text = read("--help")
    assert "a number [default: 3]" in " ".join(str(text).split()).replace("│", "")


@pytest.mark.parametrize("groups", [ENGINE, SERVER])
def test_no_two_settings_share_a_flag(groups):
    """Names of fields are unique over all settings classes."""
    names = [f.name for group in groups for f in group.fields()]
    assert len(set(names)) == len(names)


def test_every_setting_is_a_flag():
    """No documented field of the engine's and the server's settings is left out."""
    kinds = (EngineConfig, SchedConfig, MediaConfig, ServerConfig)
    have = {f.name for group in SERVER for f in group.fields()}
    assert {f.name for kind in kinds for f in fields(kind)} - have == {"sched", "media"}


def test_a_command_gives_the_engine_its_settings(tmp_path):
    """Flags reach the engine's configuration, nested parts included."""
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"video": "a", "question": "q"}')
    seen = []

    @contextmanager
    def open_engine(config):
        seen.append(config)
        yield ScriptedClient()

    arguments = ["video-qa", str(rows), "-o", str(tmp_path / "out"), "--model", "m"]
    arguments += ["--no-radix-cache", "--allowed-hosts", "a.org", "--policy", "fcfs"]
    assert CliRunner().invoke(app, arguments, obj=open_engine).exit_code == 0
    assert seen == [
        EngineConfig(
            model="m",
            sched=SchedConfig(radix_cache=False, policy="fcfs"),
            media=MediaConfig(allowed_hosts=("a.org",)),
        )
    ]
