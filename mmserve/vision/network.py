"""The network under `fetch`: a name is resolved once, checked, and that address dialled."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any

import httpcore

__all__ = ["GuardedNetwork", "resolve_host"]


def resolve_host(host: str, port: int) -> list[str]:
    """Numeric addresses of a name, in the system's order, each once.

    Numeric spellings of every kind (`127.1`, `0x7f.1`, `2130706433`) come out in plain form.
    Raises OSError or UnicodeError if there is none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class GuardedNetwork(httpcore.NetworkBackend):
    """Connects only to addresses that `check` lets pass, and never works past `deadline`.

    Args:
        resolve: (host, port) to numeric addresses.
        check: raises if one of them may not be dialled.
        deadline: on the monotonic clock, in seconds, for everything together.
    """

    def __init__(
        self,
        resolve: Callable[[str, int], list[str]],
        check: Callable[[list[str]], None],
        deadline: float,
    ) -> None:
        self._resolve = resolve
        self._check = check
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """Dial the first address of `host` that answers.

        One that is silent takes no more than its part of the time left for all.
        """
        addresses = self._resolved(host, port, _remaining(self._deadline, timeout))
        self._check(addresses)
        for num_left in range(len(addresses), 0, -1):
            limit_s = _remaining(self._deadline, timeout) / num_left
            try:
                stream = httpcore.SyncBackend().connect_tcp(
                    addresses[-num_left], port, limit_s, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if num_left == 1:
                    raise
            else:
                return _TimedStream(stream, self._deadline)
        raise httpcore.ConnectError("no address")

    def _resolved(self, host: str, port: int, limit_s: float) -> list[str]:
        """Addresses of `host`; a resolver that hangs is left behind after `limit_s`."""
        found: list[list[str]] = []

        def look_up() -> None:
            try:
                found.append(self._resolve(host, port))
            except (OSError, UnicodeError):
                found.append([])

        thread = threading.Thread(target=look_up, name="mmserve-resolve", daemon=True)
        thread.start()
        thread.join(limit_s)
        if not found:
            raise httpcore.ConnectTimeout("name resolution took too long")
        if not found[0]:
            raise httpcore.ConnectError("unknown host")
        return found[0]


class _TimedStream(httpcore.NetworkStream):
    """A connection whose every operation ends by the deadline of the whole fetch."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _remaining(self._deadline, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _remaining(self._deadline, timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        limit_s = _remaining(self._deadline, timeout)
        inner = self._inner.start_tls(ssl_context, server_hostname, limit_s)
        return _TimedStream(inner, self._deadline)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401
        return self._inner.get_extra_info(info)


def _remaining(deadline: float, timeout: float | None) -> float:
    left_s = deadline - monotonic()
    if left_s <= 0:
        raise httpcore.ReadTimeout("the fetch took too long")
    return left_s if timeout is None else min(left_s, timeout)
