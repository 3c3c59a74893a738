"""A fake engine, and errors it answers with."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mmserve.core import BackendFailed, Request
from mmserve.testing.fake_client import FakeClient


def boom() -> BackendFailed:
    """What a server with status 500 becomes."""
    return BackendFailed("the server answered with status 500", status=500)


@pytest.fixture
def client() -> FakeClient:
    """Answers with a digest of the prompt; BOOM in a prompt fails."""
    return FakeClient(failures={"BOOM": boom()})


@pytest.fixture
def slow_client() -> FakeClient:
    """The same, with a fiftieth of a second for each token."""
    return FakeClient(failures={"BOOM": boom()}, delay_s=0.02)


@pytest.fixture
def rule_client() -> Callable[[Callable[[str, Request], str]], FakeClient]:
    """Makes a fake engine that answers by a given rule."""
    return lambda rule: FakeClient(rule, failures={"BOOM": boom()})
