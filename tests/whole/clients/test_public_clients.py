"""Public clients of OpenAI's API, unchanged, each in its own environment, ask tabletop.

`python -m compat.public_clients --install` makes the environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compat.checks import Check
from compat.environments import prepare
from compat.outcomes import run_check
from compat.public_checks import PUBLIC_CHECKS, PUBLIC_CLIENTS, REQUIREMENTS, python_of
from compat.public_clients import FOLDER
from mmserve.core import EngineConfig, ServerConfig
from mmserve.engine import Engine
from mmserve.server import RunningServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, and a picture whose answers are known."""
    return prepare(tmp_path_factory.mktemp("clients"), set()).run


@pytest.fixture(scope="module")
def tabletop_url() -> Iterator[str]:
    """The embedded model behind HTTP."""
    config = EngineConfig(model="tabletop", threads=1, verify_steps=True)
    with (
        Engine.from_config(config) as engine,
        RunningServer(engine, ServerConfig(port=0)) as server,
    ):
        yield server.url


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", PUBLIC_CHECKS, ids=lambda check: f"{check.client}-{check.name}"
)
def test_a_public_client_gets_what_it_asks_for(
    check: Check, folder: Path, request: pytest.FixtureRequest
) -> None:
    """The client reads our answers, streams and refusals as its authors wrote it."""
    python = python_of(check.client, FOLDER)
    if not python.is_file():
        pytest.skip(
            f"no environment for {check.client}: python -m compat.public_clients --install"
        )
    url = request.getfixturevalue("tabletop_url")
    outcome = run_check(check, python, folder, url)
    assert (outcome.result, outcome.error) == ("pass", "")


@pytest.mark.parametrize("client", PUBLIC_CLIENTS)
def test_a_client_has_a_script_and_a_list_of_pins(client: str, folder: Path) -> None:
    """Every line of a list pins a version, but for its head."""
    assert (folder / f"{client}.py").is_file()
    head, *pins = (REQUIREMENTS / f"{client}.txt").read_text().splitlines()
    assert head.startswith("# ")
    assert [line for line in pins if line.count("==") != 1] == []
