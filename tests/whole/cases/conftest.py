"""The two backends of a program, over one engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import mmserve as sgl
from mmserve.engine import Engine
from mmserve.lang import ClientBackend


@pytest.fixture(params=["engine", "endpoint"])
def backend(request: pytest.FixtureRequest, engine: Engine) -> Iterator[Any]:
    """The engine in this process, and the same over HTTP, with nothing cached."""
    assert engine.flush_cache(timeout_s=5.0)
    if request.param == "engine":
        yield ClientBackend(engine)
        return
    with sgl.RuntimeEndpoint(request.getfixturevalue("server_url")) as endpoint:
        yield endpoint
