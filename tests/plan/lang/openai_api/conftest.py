"""The OpenAI backend, before a server of ours with an echo behind it, and before a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.api_script import ApiScript
from support.echo_client import EchoClient

import mmserve as sgl
from mmserve.core import ServerConfig
from mmserve.server import RunningServer


@pytest.fixture
def echo() -> EchoClient:
    """An engine that answers with the last text of its prompt."""
    return EchoClient()


@pytest.fixture
def url(echo: EchoClient) -> Iterator[str]:
    """The address of a server of ours in front of it."""
    with RunningServer(echo, ServerConfig(port=0)) as server:
        yield f"{server.url}/v1"


@pytest.fixture
def chat(url: str) -> Iterator[sgl.OpenAI]:
    """Its chat API."""
    with sgl.OpenAI("echo", api_key="k", base_url=url, max_retries=0) as backend:
        yield backend


@pytest.fixture
def plain(url: str) -> Iterator[sgl.OpenAI]:
    """Its completions API."""
    with sgl.OpenAI("echo", False, api_key="k", base_url=url, max_retries=0) as backend:
        yield backend


@pytest.fixture
def script() -> Iterator[ApiScript]:
    """A scripted API."""
    server = ApiScript()
    yield server
    server.close()


@pytest.fixture
def scripted(script: ApiScript) -> Iterator[sgl.OpenAI]:
    """The chat API of the scripted server."""
    with sgl.OpenAI("m", api_key="k", base_url=script.url, max_retries=0) as backend:
        yield backend
