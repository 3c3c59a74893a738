"""Clients that leave before they have their answer, and waiting for what comes of it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

__all__ = ["leaving", "wait_until"]

_LIMIT_S = 90.0


@contextmanager
def leaving(url: str, path: str, body: dict[str, Any]) -> Iterator[http.client.HTTPConnection]:
    """A connection on which the request was sent, closed at the end, answered or not."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=_LIMIT_S)
    try:
        connection.request("POST", path, json.dumps(body))
        yield connection
    finally:
        connection.close()


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so; fail after a minute and a half."""
    deadline = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)
