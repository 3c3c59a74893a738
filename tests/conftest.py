"""No test reaches beyond this machine, and none draws anything that the next run does not."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest
import support.reference  # noqa: F401 - before anything imports transformers
from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile("fixed")

_LOCAL = ("127.", "::1", "localhost")


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """Connections leave for loopback only; anything else fails at once."""
    patch = pytest.MonkeyPatch()
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not str(address[0]).startswith(_LOCAL):
            raise OSError(f"a test tried to reach {address[0]}")
        connect(self, address)

    patch.setattr(socket.socket, "connect", guarded)
    yield
    patch.undo()
