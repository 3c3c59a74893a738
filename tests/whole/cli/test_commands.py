"""The commands over a real engine, and the server as a process."""

import json
import signal
import subprocess
import sys
from contextlib import nullcontext

import httpx
import pytest
from PIL import Image
from typer.testing import CliRunner

from mmserve.cli import app
from mmserve.cli.models import FAMILIES
from mmserve.models import FAMILIES as REGISTRY


@pytest.fixture
def run(engine):
    """Runs a command on the shared engine."""

    def invoke(*arguments: str):
        return CliRunner().invoke(app, list(arguments), obj=lambda config: nullcontext(engine))

    return invoke


@pytest.fixture
def picture(tmp_path) -> str:
    """A picture's path."""
    path = tmp_path / "p.png"
    Image.new("RGB", (48, 32), (10, 200, 90)).save(path)
    return str(path)


def test_ask_gives_valid_answers(run, picture):
    """Each answer is one of the options, one a line."""
    result = run("ask", "--image", picture, "a?", "b?", "--choices", "left,right")
    assert result.exit_code == 0
    assert {*result.stdout.splitlines()} <= {"left", "right"}
    assert len(result.stdout.splitlines()) == 2


def test_ask_about_a_missing_picture_is_a_message(run):
    """No traceback, the path, exit code 1."""
    result = run("ask", "--image", "no/such.png", "what?")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no/such.png" in result.stderr


def test_an_unenforceable_pattern_is_refused(run):
    """Before anything is generated."""
    result = run("ask", "what?", "--regex", "(")
    assert (result.exit_code, "error: " in result.stderr) == (1, True)


def test_demo_counts_one_decode_and_one_encode(run, engine):
    """The embedded samples: the picture is read and encoded once, each frame encoded once."""
    engine.flush_cache(5)
    shown = json.loads(run("demo", "--json").stdout)
    picture, clip = shown["parts"]
    assert (picture["cost"]["decoded"], picture["cost"]["encoded"]) == (1, 1)
    assert clip["cost"]["decoded"] == 1
    assert clip["cost"]["encoded"] >= 1
    first, *others = picture["answers"]
    assert first["cached_tokens"] < min(answer["cached_tokens"] for answer in others)


@pytest.mark.parametrize("room", ["radix", "sched"])
def test_show_draws(run, room):
    """Every room that is offered can draw itself."""
    result = run("show", room)
    assert (result.exit_code, bool(result.stdout.strip())) == (0, True)


def test_the_list_of_families_is_the_registry():
    """`mmserve models` names exactly what can be loaded."""
    assert sorted(family.name for family in FAMILIES) == sorted(REGISTRY)


@pytest.mark.parametrize("check", sorted({family.check for family in FAMILIES}))
def test_every_family_is_proved_by_a_test_that_exists(check, pytestconfig):
    """The file that `mmserve models` names is there."""
    assert (pytestconfig.rootpath / check).is_file()


@pytest.mark.slow
def test_serve_answers_until_interrupted(tiny_directory):
    """The process says what computes and where it is, and ends quietly on Ctrl-C."""
    command = [sys.executable, "-m", "mmserve", "serve", "--model", str(tiny_directory)]
    command += ["--port", "0", "--num-slots", "2048", "--threads", "1", "--verbose"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        told = []
        while (line := process.stderr.readline()) and "http://" not in line:
            told.append(line.strip())
        url = next(word for word in line.split() if word.startswith("http://")).rstrip(",")
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport, trust_env=False, timeout=20) as http:
            assert http.get(url + "/health").status_code == 200
            assert " ".join(http.get(url + "/server_info").json()["kernels"]) == " ".join(told)
    finally:
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=30)[1]
    assert "Traceback" not in rest
    assert process.returncode in (0, 130)
