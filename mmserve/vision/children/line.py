"""Messages between parent and child: JSON objects, one a line, over a Unix socket.

Values of the house (headers, times, limits) travel as objects that name their kind; only the
kinds listed here are made again from what arrives, and their modules imported when one does.
"""

from __future__ import annotations

import json
import select
import socket
from dataclasses import fields, is_dataclass
from fractions import Fraction
from importlib import import_module
from time import monotonic
from typing import Any

__all__ = ["Line", "Message", "packed", "unpacked"]

Message = dict[str, Any]

_KIND = "is"
_HOMES = {
    "ClipHeader": "mmserve.vision.clips.header",
    "FrameTimes": "mmserve.vision.sampling",
    "MediaConfig": "mmserve.core",
    "PictureHeader": "mmserve.vision.header",
}
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 64 << 20


class Line:
    """One end of the socket; used by one thread at a time.

    Args:
        end: a connected stream socket; the caller's to close.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._rest = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, message: Message, timeout_s: float | None = None) -> None:
        """Send one message. Raises OSError (TimeoutError if the other end takes none)."""
        self._socket.settimeout(timeout_s)
        self._socket.sendall(packed(message) + b"\n")

    def receive(
        self, timeout_s: float | None = None, wake: int | None = None
    ) -> Message | None:
        """The next message; None if the descriptor `wake` became readable first.

        Raises:
            TimeoutError: none came within `timeout_s`.
            EOFError: the other end is gone.
            ValueError: what came is no message.
        """
        until = None if timeout_s is None else monotonic() + timeout_s
        while (end := self._rest.find(b"\n")) < 0:
            if len(self._rest) > _MOST_BYTES:
                raise ValueError("a message without an end")
            if not self._wait(until, wake):
                return None
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError
            self._rest += chunk
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return unpacked(line)

    def has_message(self) -> bool:
        """Whether `receive` would not wait. Pure."""
        return b"\n" in self._rest or bool(self._poll.poll(0))

    def _wait(self, until: float | None, wake: int | None) -> bool:
        """Wait for the socket; False if `wake` was ready and the socket not."""
        if wake is not None:
            self._poll.register(wake, select.POLLIN)
        try:
            left_ms = None if until is None else max(0.0, until - monotonic()) * 1000
            ready = {descriptor for descriptor, _ in self._poll.poll(left_ms)}
        finally:
            if wake is not None:
                self._poll.unregister(wake)
        if not ready:
            raise TimeoutError
        return ready != {wake}


def packed(message: Message) -> bytes:
    """A message as one line of JSON, without its end. Pure."""
    return json.dumps(message, default=_plain, separators=(",", ":")).encode()


def unpacked(line: bytes) -> Message:
    """The message of a line. Raises ValueError if it is none. Pure."""
    try:
        message = json.loads(line, object_hook=_made)
    except (LookupError, TypeError, ZeroDivisionError, RecursionError) as error:
        raise ValueError("a message of no known kind") from error
    if not isinstance(message, dict):
        raise ValueError("a message that is no object")  # noqa: TRY004 - as other bad messages
    return message


def _made(members: Message) -> object:
    kind = members.pop(_KIND, None)
    if kind is None:
        return members
    if kind == "Fraction":
        return Fraction(*members["parts"])
    home = import_module(_HOMES[kind])
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in members.items()}
    return getattr(home, kind)(**frozen)


def _plain(value: object) -> object:
    if isinstance(value, Fraction):
        return {_KIND: "Fraction", "parts": [value.numerator, value.denominator]}
    if isinstance(value, range):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = {spec.name: getattr(value, spec.name) for spec in fields(value)}
        return {_KIND: type(value).__name__, **members}
    raise TypeError(f"{type(value).__name__} cannot be sent")
