"""Uploaded files in memory: each belongs to who sent it, the least recently used leave first.

    id "file-1f.." --+
                     +--> content of one owner, held once    num_bytes = sum of contents
    id "file-a0.." --+                                       <= max_bytes, always

    created ---- use -------- use --------------------+ expires
                               `- expiry_s after the last use, or earlier if the upload says so

Who asks for a file of somebody else hears what is said of a file that never was.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf

from mmserve.core import NotFound
from mmserve.server.clients import Caller
from mmserve.server.errors import file_too_large
from mmserve.server.fields import shown

__all__ = ["FileStore", "StoredFile"]

_MOST_FILES = 100_000
_MOST_EXPIRED = 10_000
_MAX_NAME = 80
_Owner = tuple[str, str]
_Key = tuple[_Owner, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One upload. `number` counts up, so that files of one second have an order too.

    Times are seconds since 1970. It expires at `expires_s`, unless it is used before; and at
    `ends_s` at the latest.
    """

    id: str
    filename: str
    purpose: str
    created_s: float
    ends_s: float
    expires_s: float
    number: int
    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class _Entry:
    file: StoredFile
    key: _Key


class FileStore:
    """The files of all callers. Safe from any thread.

    Args:
        max_bytes: most bytes of all contents together.
        expiry_s: seconds that a file is kept after its last use.
        clock: seconds since 1970; the system's if not given.
    """

    def __init__(
        self, max_bytes: int, expiry_s: float, clock: Callable[[], float] | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._expiry_s = expiry_s
        self._clock = clock or (lambda: datetime.now(UTC).timestamp())
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._contents: dict[
            _Key, tuple[bytes, int]
        ] = {}  # and how many files are this content
        self._num_bytes = 0
        self._num_added = 0
        self._num_evicted = 0
        self._num_expired = 0
        self._expired: OrderedDict[str, _Owner] = OrderedDict()  # the latest, to be told of
        self._first_expiry_s = inf
        """No file expires before."""

    def add(
        self,
        caller: Caller,
        content: bytes,
        *,
        filename: str,
        purpose: str,
        ends_after_s: float = inf,
    ) -> StoredFile:
        """Keep a file of this caller, for `ends_after_s` seconds at most.

        Changes: the store; others may leave. Raises the 413 refusal if it alone is more than
        the store may hold. Cost: one digest.
        """
        if len(content) > self._max_bytes:
            raise file_too_large(len(content), self._max_bytes)
        key = (_owner(caller), hashlib.blake2b(content, digest_size=32).digest())
        with self._lock:
            now_s = self._sweep()
            held, num_files = self._contents.get(key, (content, 0))
            self._contents[key] = (held, num_files + 1)
            self._num_bytes += 0 if num_files else len(held)
            self._num_added += 1
            file = StoredFile(
                id=f"file-{secrets.token_hex(16)}",
                filename=filename,
                purpose=purpose,
                created_s=now_s,
                ends_s=now_s + ends_after_s,
                expires_s=now_s,
                number=self._num_added,
                content=held,
            )
            file = self._used(_Entry(file, key), now_s)
            while self._num_bytes > self._max_bytes or len(self._entries) > _MOST_FILES:
                self._drop(next(iter(self._entries)))
                self._num_evicted += 1
            return file

    def find(self, caller: Caller, file_id: str, name: str | None = None) -> StoredFile:
        """A file of this caller; `name` is the request's field that names it.

        Changes: the file counts as used now. Raises NotFound.
        """
        with self._lock:
            now_s = self._sweep()
            return self._used(self._entry(caller, file_id, name), now_s)

    def look(self, caller: Caller, file_id: str) -> StoredFile:
        """Like `find`, without counting as a use. Changes: what has expired is gone."""
        with self._lock:
            self._sweep()
            return self._entry(caller, file_id, None).file

    def files(self, caller: Caller) -> list[StoredFile]:
        """All files of this caller, the oldest first. Changes: what has expired is gone."""
        owner = _owner(caller)
        with self._lock:
            self._sweep()
            own = [entry.file for entry in self._entries.values() if entry.key[0] == owner]
        return sorted(own, key=lambda file: file.number)

    def remove(self, caller: Caller, file_id: str) -> None:
        """Forget a file of this caller. Changes: the store. Raises NotFound."""
        with self._lock:
            self._sweep()
            self._entry(caller, file_id, None)
            self._drop(file_id)

    def sweep(self) -> None:
        """Let go of what has expired. Changes: the store. Cost: next to none if nothing has."""
        with self._lock:
            self._sweep()

    def counters(self) -> dict[str, float]:
        """Gauges and counters in the form of `Client.counters`; expired files do not count.

        Changes: what has expired is gone.
        """
        with self._lock:
            self._sweep()
            return {
                "files": float(len(self._entries)),
                "file_bytes": float(self._num_bytes),
                "file_uploads_total": float(self._num_added),
                "file_evictions_total": float(self._num_evicted),
                "file_expirations_total": float(self._num_expired),
            }

    def _used(self, entry: _Entry, now_s: float) -> StoredFile:
        """The file of an entry, used now. Changes: when it expires, and its turn to leave."""
        expires_s = min(now_s + self._expiry_s, entry.file.ends_s)
        file = replace(entry.file, expires_s=expires_s)
        self._entries[file.id] = _Entry(file, entry.key)
        self._entries.move_to_end(file.id)
        self._first_expiry_s = min(self._first_expiry_s, expires_s)
        return file

    def _sweep(self) -> float:
        """The time now. Changes: what has expired is gone."""
        now_s = self._clock()
        if now_s >= self._first_expiry_s:
            ends = {file_id: entry.file.expires_s for file_id, entry in self._entries.items()}
            for file_id in [file_id for file_id, end_s in ends.items() if end_s <= now_s]:
                self._expired[file_id] = self._entries[file_id].key[0]
                self._drop(file_id)
                self._num_expired += 1
            self._first_expiry_s = min(
                (end for end in ends.values() if end > now_s), default=inf
            )
            while len(self._expired) > _MOST_EXPIRED:
                self._expired.popitem(last=False)
        return now_s

    def _entry(self, caller: Caller, file_id: str, name: str | None) -> _Entry:
        entry = self._entries.get(file_id)
        if entry is None or entry.key[0] != _owner(caller):
            message = f"there is no file {shown(file_id)}, or no more"
            if self._expired.get(file_id) == _owner(caller):
                message = f"the file {shown(file_id)} has expired"
            hint = "upload it again with POST /v1/files"
            raise NotFound(
                message, hint=hint, field=name, what="file", name=file_id[:_MAX_NAME]
            )
        return entry

    def _drop(self, file_id: str) -> None:
        key = self._entries.pop(file_id).key
        content, num_files = self._contents.pop(key)
        if num_files > 1:
            self._contents[key] = (content, num_files - 1)
        else:
            self._num_bytes -= len(content)


def _owner(caller: Caller) -> _Owner:
    """Whose files a caller sees; callers who sent no key of their own are one."""
    return caller.owner, caller.key
