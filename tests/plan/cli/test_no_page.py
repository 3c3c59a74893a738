"""The flag that turns the web page off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.scripted_client import ScriptedClient
from typer.testing import CliRunner

from mmserve import server
from mmserve.cli.app import app
from mmserve.core import EngineConfig, ServerConfig


@contextmanager
def open_nothing(_config: EngineConfig) -> Iterator[ScriptedClient]:
    """No engine."""
    yield ScriptedClient()


@pytest.mark.parametrize(("flags", "is_served"), [([], True), (["--no-page"], False)])
def test_the_page_is_served_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], is_served: bool
) -> None:
    """`--no-page` reaches the server's settings."""
    seen: list[ServerConfig] = []
    monkeypatch.setattr(server, "serve", lambda _client, config, **_: seen.append(config))
    done = CliRunner().invoke(app, ["serve", *flags], obj=open_nothing)
    assert done.exit_code == 0, done.output
    assert [config.is_page_served for config in seen] == [is_served]
