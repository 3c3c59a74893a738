"""The two backends of a program, over one engine, and every way to ask for a form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.constrained import Say, over_http, through_language
from support.oracle import Asker

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


@pytest.fixture(params=["chat", "stream", "engine", "endpoint"])
def say(
    request: pytest.FixtureRequest, ask: Asker, engine: Engine, server_url: str
) -> Iterator[Say]:
    """Every way to ask."""
    if request.param in ("chat", "stream"):
        yield over_http(ask, stream=request.param == "stream")
    elif request.param == "engine":
        yield through_language(ClientBackend(engine))
    else:
        with sgl.RuntimeEndpoint(server_url) as endpoint:
            yield through_language(endpoint)


@pytest.fixture(params=[False, True])
def chat(request: pytest.FixtureRequest, ask: Asker) -> Say:
    """Chat, whole and streamed; a bias can be sent there."""
    return over_http(ask, stream=request.param)
