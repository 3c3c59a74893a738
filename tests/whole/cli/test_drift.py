"""`mmserve drift` over real engines and servers: settings of our own, and endpoints."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.scripted_client import ScriptedClient, question_of
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.core import Finish, RunnerFailed, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer
from mmserve.testing import TEST_SEEDS, scene

Write = Callable[..., Path]
PLAIN = "model=tabletop,threads=1"


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions about three table tops, by kind, and one long answer each."""
    folder = tmp_path_factory.mktemp("scenes")
    rows = []
    for seed in TEST_SEEDS[:3]:
        drawn = scene(seed)
        path = folder / f"{seed}.png"
        drawn.image.save(path)
        asked = [q for q in drawn.questions if q.other_image is None and not q.history][:4]
        rows += [
            {"task": one.kind, "prompt": one.question, "images": [str(path)]} for one in asked
        ]
        words = "Describe the picture."
        rows.append({"task": "describe", "prompt": words, "images": [str(path)]})
    target = folder / "rows.jsonl"
    target.write_text("\n".join(map(json.dumps, rows)))
    return target


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes rows into a file."""

    def rows(*several: dict[str, Any]) -> Path:
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, several)))
        return path

    return rows


def drift(file: Path, a: str, b: str, *flags: str, obj: Any = None) -> Result:
    """The command."""
    return CliRunner().invoke(app, ["drift", str(file), "--a", a, "--b", b, *flags], obj=obj)


def report_of(result: Result) -> dict[str, Any]:
    """What `--json -` printed."""
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        PLAIN,
        f"{PLAIN},radix_cache=off",
        f"{PLAIN},chunk_tokens=16,max_step_tokens=48",
        f"{PLAIN},max_running=1",
        f"{PLAIN},num_slots=1200,page_tokens=4",
    ],
    ids=["same", "no cache", "small chunks", "one at a time", "little room"],
)
def test_settings_that_change_no_answer_have_no_flips(scenes: Path, other: str) -> None:
    """Every answer of tabletop is the same, and so is every token's log-probability."""
    result = drift(scenes, PLAIN, other, "--json", "-")
    report = report_of(result)
    assert (result.exit_code, report["summary"]["flipped"]) == (0, 0)
    assert report["summary"]["compared"] == len(scenes.read_text().splitlines())
    assert report["summary"]["logprob_off"] < 1e-3
    assert report["summary"]["other_tokens"] == 0


@pytest.mark.slow
def test_another_temperature_flips_answers_and_names_the_first_token(scenes: Path) -> None:
    """Each flip names both tokens; B, which drew, found its own less likely than A's."""
    result = drift(scenes, PLAIN, f"{PLAIN},temperature=1.8,seed=1", "--json", "-")
    report = report_of(result)
    flips = [row for row in report["rows"] if row["result"] == "flipped"]
    assert (result.exit_code, len(flips)) == (4, report["summary"]["flipped"])
    assert flips
    for row in flips:
        found = row["difference"]
        assert found["unit"] == "token"
        assert found["a"] != found["b"]
        assert found["gap_a"] is None or found["gap_a"] >= 0
    assert any((row["difference"]["gap_b"] or 0) < 0 for row in flips)


def test_another_system_text_flips_answers(engine: Engine, write: Write) -> None:
    """What is said before the prompt is part of a side."""
    file = write({"prompt": "Tell me a story.", "max_tokens": 12})
    obj = lambda config: nullcontext(engine)  # noqa: E731 - as the command wants it
    same = drift(file, "model=x", "model=x", obj=obj)
    other = drift(file, "model=x", 'model=x,system="Speak, like a cat."', obj=obj)
    assert (same.exit_code, other.exit_code) == (0, 4)
    assert "A says" in other.stdout


def test_messages_constraints_and_pictures_of_a_row_arrive(
    engine: Engine, write: Write, tmp_path: Path
) -> None:
    """A schema, a regex, choices and a picture are honoured on both sides."""
    picture = tmp_path / "p.png"
    scene(TEST_SEEDS[0]).image.save(picture)
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    messages = [{"role": "user", "content": "Which?"}]
    file = write(
        {"prompt": "Which?", "json_schema": schema | {"additionalProperties": False}},
        {"messages": messages, "regex": "[ab]{3}"},
        {"messages": messages, "choices": ["left", "right"], "images": [str(picture)]},
    )
    result = drift(file, "model=x", "model=x", "--json", "-", obj=lambda c: nullcontext(engine))
    rows = report_of(result)["rows"]
    assert [row["result"] for row in rows] == ["same"] * 3
    assert json.loads(rows[0]["answer_a"])["a"] in ("x", "y")
    assert set(rows[1]["answer_a"]) <= set("ab")
    assert rows[2]["answer_a"] in ("left", "right")


def test_two_endpoints_are_compared_by_characters_without_tokens(write: Write) -> None:
    """Answers are of any server; one task flips, the other does not."""

    def shout(request: Any) -> str:
        text = question_of(request)
        return text.upper() if "b" in text else text

    file = write({"task": "one", "prompt": "a"}, {"task": "two", "prompt": "ab"})
    with (
        RunningServer(ScriptedClient(question_of)) as left,
        RunningServer(ScriptedClient(shout)) as right,
    ):
        result = drift(file, left.url, f"{right.url}/v1", "--json", "-")
    report = report_of(result)
    assert [task["flipped_share"] for task in report["tasks"]] == [0, 1]
    assert report["rows"][1]["answer_b"] == "AB"
    assert (report["summary"]["worst_share"], result.exit_code) == (1, 4)


@pytest.mark.parametrize(
    "fate",
    [RunnerFailed("device lost", step=1), Finish("error", error=RunnerFailed("x", step=1))],
)
def test_a_failing_endpoint_gives_errors_and_no_flips(write: Write, fate: Any) -> None:
    """Each prompt has the failed side's error, the shares stay 0, the exit code says so."""
    file = write({"prompt": "a"}, {"prompt": "b"})
    with (
        RunningServer(ScriptedClient(question_of)) as left,
        RunningServer(ScriptedClient(lambda request: fate)) as right,
    ):
        result = drift(file, left.url, right.url, "--json", "-")
    report = report_of(result)
    assert (result.exit_code, report["summary"]["failed"]) == (3, 2)
    assert (report["summary"]["flipped"], report["summary"]["compared"]) == (0, 0)
    assert all(row["error_b"] and not row["error_a"] for row in report["rows"])


def test_a_side_that_is_not_there_is_exit_code_1(write: Write) -> None:
    """Nothing is compared with nobody."""
    with RunningServer(ScriptedClient()) as server:
        gone = server.url
    result = drift(write({"prompt": "a"}), gone, gone)
    assert (result.exit_code, "cannot reach" in result.stderr) == (1, True)


def test_a_key_is_sent_and_not_told(write: Write) -> None:
    """An endpoint's key opens it, and stands in no report."""
    with RunningServer(ScriptedClient(), ServerConfig(port=0, api_key="sesame")) as server:
        side = f"url={server.url},api_key=sesame"
        result = drift(write({"prompt": "a"}), side, side)
    assert (result.exit_code, "sesame" in result.output) == (0, False)


def test_report_and_plot_are_written(write: Write, tmp_path: Path) -> None:
    """Two files beside the table: the report as JSON, and a well-formed picture."""
    target, picture = tmp_path / "r.json", tmp_path / "r.svg"
    with (
        RunningServer(ScriptedClient(question_of)) as left,
        RunningServer(ScriptedClient()) as right,
    ):
        flags = ("--json", str(target), "--plot", str(picture), "--most", "1")
        file = write({"task": "<loud>", "prompt": "a"}, {"prompt": "2"})
        result = drift(file, left.url, right.url, *flags)
    assert (result.exit_code, "<loud>" in result.stdout) == (0, True)
    assert json.loads(target.read_text())["summary"]["flipped"] == 1
    assert ET.parse(picture).getroot().tag.endswith("svg")


def test_lines_that_are_no_rows_are_errors_of_both_sides(write: Write) -> None:
    """They are told with their reason, and the others are compared."""
    with RunningServer(ScriptedClient()) as server:
        file = write({"prompt": "a"}, {"prompt": "a", "fps": 1}, {"prompt": "a", "odd": 1})
        result = drift(file, server.url, server.url, "--json", "-")
    rows = report_of(result)["rows"]
    assert [row["result"] for row in rows] == ["same", "failed", "failed"]
    assert "fps is for a video" in rows[1]["error_a"]["message"]
    assert result.exit_code == 3
