"""The two backends, over one engine, and pictures that differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from support.oracle import png

import mmserve as sgl
from mmserve.engine import Engine
from mmserve.lang import ClientBackend

RED = png(Image.linear_gradient("L").resize((64, 48)).convert("RGB"))
BLUE = png(Image.radial_gradient("L").resize((48, 64)).convert("RGB"))


@pytest.fixture(scope="session")
def endpoint(server_url: str) -> Iterator[sgl.RuntimeEndpoint]:
    """The engine over HTTP."""
    backend = sgl.RuntimeEndpoint(server_url)
    yield backend
    backend.close()


@pytest.fixture(params=["engine", "endpoint"])
def backend(request: pytest.FixtureRequest, engine: Engine):
    """The engine in this process, and the same over HTTP, with nothing cached."""
    if request.param == "engine":
        chosen = ClientBackend(engine)
    else:
        chosen = request.getfixturevalue("endpoint")
    assert engine.flush_cache(timeout_s=5.0)
    yield chosen
    assert engine.flush_cache(timeout_s=5.0)


@pytest.fixture
def red(tmp_path: Path) -> str:
    """The path of a picture."""
    path = tmp_path / "red.png"
    path.write_bytes(RED)
    return str(path)


@pytest.fixture
def blue(tmp_path: Path) -> str:
    """The path of another picture."""
    path = tmp_path / "blue.png"
    path.write_bytes(BLUE)
    return str(path)
