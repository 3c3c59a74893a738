"""Flags made of settings classes."""

from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

import pytest
import typer
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.flags import ENGINE, SERVER, FlagGroup, Settings, with_settings
from mmserve.core import EngineConfig, MediaConfig, Policy, SchedConfig, ServerConfig


@dataclass(frozen=True)
class Sample:
    """A settings class with every type of field."""

    number: int = field(default=3, metadata={"doc": "a number", "low": 2, "high": 64})
    off: bool = field(default=False, metadata={"doc": "an off switch"})
    on: bool = field(default=True, metadata={"doc": "count"})
    names: tuple[str, ...] = field(default=(), metadata={"doc": "some names"})
    maybe: float | None = field(default=None, metadata={"doc": "perhaps"})
    port: int | None = field(default=None, metadata={"doc": "may be 0"})
    shares: tuple[tuple[str, float], ...] = field(default=(), metadata={"doc": "shares"})
    ranks: tuple[tuple[str, int], ...] = field(default=(), metadata={"doc": "ranks"})
    secrets: tuple[tuple[str, str], ...] = field(default=(), metadata={"doc": "secrets"})
    word: Literal["a", "b"] = field(default="a", metadata={"doc": "one of two"})
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
        (["--word", "b"], Sample(word="b")),
        (["--number", "64"], Sample(number=64)),
        (
            ["--shares", "a=4", "--shares", "b=c=.5"],
            Sample(shares=(("a", 4.0), ("b=c", 0.5))),
        ),
        (["--shares", "=2"], Sample(shares=(("", 2.0),))),
        (["--ranks", "a=-1"], Sample(ranks=(("a", -1),))),
        (["--secrets", "a=s=1="], Sample(secrets=(("a", "s=1="),))),
    ],
)
def test_flags_become_settings(arguments, expected):
    """Every type of field can be set, and silence gives the class's defaults."""
    assert read(*arguments) == expected


@pytest.mark.parametrize(
    "arguments",
    [
        ["--number", "1"],
        ["--number", "65"],
        ["--maybe", "-1"],
        ["--port", "-1"],
        ["--hidden", "8"],
        ["--on"],
        ["--word", "c"],
    ],
)
def test_values_below_the_limit_and_undocumented_fields_are_refused(arguments):
    """Limits hold, and what has no doc is no flag."""
    assert isinstance(read(*arguments), str)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--shares", "alice"], "'alice' is not NAME=NUMBER"),
        (["--shares", "alice="], "'alice=' is not NAME=NUMBER"),
        (["--shares", "alice=much"], "hint: for example alice=2.5"),
        (["--ranks", "alice=1.5"], "'alice=1.5' is not NAME=WHOLE"),
        (["--secrets", "alice="], "the value is not NAME=TEXT"),
    ],
)
def test_a_bad_pair_is_wrong_use_with_a_hint(arguments, words):
    """The refusal shows the pair, what it should be, and an example."""
    text = " ".join(str(read(*arguments)).replace("│", "").split())
    assert f"Invalid value for '{arguments[0]}'" in text
    assert words in text


def test_a_bad_secret_is_not_repeated():
    """It would stand in the terminal's history of messages, and in logs."""
    assert "sesame" not in str(read("--secrets", "sesame"))


def test_help_shows_doc_and_default():
    """Help is the field's own documentation."""
    text = read("--help")
    assert "a number [default: 3]" in " ".join(str(text).split()).replace("│", "")


@pytest.mark.parametrize("policy", get_args(Policy))
def test_every_policy_is_a_word_of_its_flag(policy):
    """All the names that the settings allow, the flag takes."""
    small, got = typer.Typer(), []

    @small.command()
    @with_settings(ENGINE)
    def command(*, settings: Settings) -> None:
        got.append(settings.of(SchedConfig).policy)

    CliRunner().invoke(small, ["--policy", policy])
    assert got == [policy]


@pytest.mark.parametrize("value", ["0", "nan", "-1"])
def test_a_target_of_nothing_is_wrong_use(value):
    """What flag or settings refuse ends with code 2 and names the setting."""
    result = CliRunner().invoke(app, ["serve", "--target-itl-ms", value])
    assert result.exit_code == 2
    assert "target" in result.stderr


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
    arguments += ["--no-fairness", "--eviction", "slru", "--target-itl-ms", "12.5"]
    arguments += ["--client-weights", "a=4", "--client-priorities", "b=2"]
    assert CliRunner().invoke(app, arguments, obj=open_engine).exit_code == 0
    assert seen == [
        EngineConfig(
            model="m",
            sched=SchedConfig(
                radix_cache=False,
                policy="fcfs",
                fairness=False,
                eviction="slru",
                target_itl_ms=12.5,
                client_weights=(("a", 4.0),),
                client_priorities=(("b", 2),),
            ),
            media=MediaConfig(allowed_hosts=("a.org",)),
        )
    ]
