"""Local files sent to one server once, then named by the id that it gave them.

    path, size, time of change -> held             named
                               -> on its way       wait for the one who sends it
                               -> POST /v1/files   named, and held while somebody uses it
                               -> no such route, too large, tiny: goes inline with each call

    used: users > 0 --release--> idle: the last few stay --more idle, or close--> DELETE

A server may forget a file on its own: whoever hears of it says so, and it is sent again.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mmserve.batch.remote.addresses import check_file, file_type
from mmserve.batch.remote.calling import check
from mmserve.core import BackendFailed, MediaRefused, MmserveError

if TYPE_CHECKING:
    import httpx

__all__ = ["LEAST_BYTES", "Held", "Uploads"]

LEAST_BYTES = 1024
"""Smaller files go inline: an upload of its own would cost more than it spares."""

_MAX_IDLE = 4
_NO_ROUTE = (404, 405, 501)
_TOO_LARGE = 413
_DELETE_S = 5.0
_Key = tuple[str, int, int]


@dataclass(slots=True, eq=False)
class Held:
    """A file that the server has, or gets; `name` gives None if it goes inline."""

    key: _Key
    name: Future[str | None] = field(default_factory=Future)
    num_users: int = 0


class Uploads:
    """The files of one server. Safe from any thread.

    Args:
        post: sends a file, or deletes one; raises what the transport raises.
        errors: what the transport raises.
    """

    def __init__(
        self,
        post: Callable[..., httpx.Response],
        delete: Callable[..., httpx.Response],
        errors: tuple[type[Exception], ...],
    ) -> None:
        self._post = post
        self._delete = delete
        self._errors = errors
        self._no_name: tuple[type[Exception], ...] = (MmserveError, TimeoutError, *errors)
        self._lock = threading.Lock()
        self._held: OrderedDict[_Key, Held] = OrderedDict()  # least recently used first
        self._has_route = True
        self.num_files = 0
        self.num_bytes = 0

    def hold(self, path: str) -> Held:
        """The file at the server, until `release`; sent if need be, once for all threads.

        Changes: what the server keeps. Raises MediaRefused for an unreadable file, and what
        the transport raises, in every thread that waits for it.
        """
        key = check_file(path)
        with self._lock:
            held = self._held.get(key)
            is_mine = held is None
            if held is None:
                held = self._held[key] = Held(key)
            held.num_users += 1
            self._held.move_to_end(key)
        if is_mine:
            self._fly(held)
        else:
            held.name.result()
        return held

    def release(self, held: Held) -> None:
        """One user less. Changes: idle files beyond the last few are deleted."""
        with self._lock:
            held.num_users -= 1
            idle = [other for other in self._held.values() if not other.num_users]
            for other in (leaving := idle[: max(0, len(idle) - _MAX_IDLE)]):
                del self._held[other.key]
        for other in leaving:
            self._remove(other)

    def forget(self, held: Held) -> None:
        """The server has it no more. Changes: who asks next sends it again."""
        with self._lock:
            if self._held.get(held.key) is held:  # else somebody has sent it again already
                del self._held[held.key]

    def close(self) -> None:
        """Delete what the server keeps for us. Changes: it, too."""
        with self._lock:
            leaving = list(self._held.values())
            self._held.clear()
        for held in leaving:
            if not self._remove(held):
                return  # it is gone, and its memory with it

    def _fly(self, held: Held) -> None:
        try:
            name = self._send(*held.key)
        except BaseException as error:
            self.forget(held)
            held.name.set_exception(error)
            raise
        held.name.set_result(name)

    def _send(self, path: str, num_bytes: int, _changed: int) -> str | None:
        if num_bytes < LEAST_BYTES or not self._has_route:
            return None
        try:
            with Path(path).open("rb") as file:
                response = self._post(
                    "/v1/files",
                    files={"file": (f"media{Path(path).suffix}", file, file_type(path))},
                    data={"purpose": "vision"},
                )
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise MediaRefused(f"{path}: {reason}", reason="fetch_failed") from error
        if response.status_code in _NO_ROUTE:
            self._has_route = False
            return None
        if response.status_code == _TOO_LARGE:
            return None
        check(response)
        with self._lock:
            self.num_files += 1
            self.num_bytes += num_bytes
        return _id_in(response)

    def _remove(self, held: Held) -> bool:
        """Whether the server could be told."""
        try:
            name = held.name.result(0)
        except self._no_name:
            return True
        if name is None:
            return True
        with contextlib.suppress(*self._errors):
            self._delete(f"/v1/files/{name}", timeout=_DELETE_S)
            return True
        return False


def _id_in(response: httpx.Response) -> str:
    try:
        name = response.json()["id"]
    except (ValueError, KeyError, TypeError):
        name = None
    if not isinstance(name, str) or not name:
        message = "the server's reply to an upload has no id"
        raise BackendFailed(message, status=response.status_code)
    return name
