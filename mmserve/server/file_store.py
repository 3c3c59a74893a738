"""Uploaded files in memory: each belongs to who sent it, the least recently used leave first.

    id "file-1f.." --+
                     +--> content of one owner, held once    num_bytes = sum of contents
    id "file-a0.." --+                                       <= max_bytes, always

Who asks for a file of somebody else hears what is said of a file that never was.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from mmserve.core import NotFound
from mmserve.server.clients import Caller
from mmserve.server.errors import file_too_large
from mmserve.server.fields import shown

__all__ = ["FileStore", "StoredFile"]

_MOST_FILES = 100_000
_MAX_NAME = 80
_Owner = tuple[str, str]
_Key = tuple[_Owner, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """One upload. `number` counts up, so that files of one second have an order too."""

    id: str
    filename: str
    purpose: str
    created_s: int
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
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # least recently used first
        self._contents: dict[
            _Key, tuple[bytes, int]
        ] = {}  # and how many files are this content
        self._num_bytes = 0
        self._num_added = 0
        self._num_evicted = 0

    def add(
        self, caller: Caller, content: bytes, *, filename: str, purpose: str, now_s: int
    ) -> StoredFile:
        """Keep a file of this caller. Changes: the store; others may leave.

        Raises the 413 refusal if it alone is more than the store may hold. Cost: one digest.
        """
        if len(content) > self._max_bytes:
            raise file_too_large(len(content), self._max_bytes)
        key = (_owner(caller), hashlib.blake2b(content, digest_size=32).digest())
        with self._lock:
            held, num_files = self._contents.get(key, (content, 0))
            self._contents[key] = (held, num_files + 1)
            self._num_bytes += 0 if num_files else len(held)
            self._num_added += 1
            file = StoredFile(
                id=f"file-{secrets.token_hex(16)}",
                filename=filename,
                purpose=purpose,
                created_s=now_s,
                number=self._num_added,
                content=held,
            )
            self._entries[file.id] = _Entry(file, key)
            while self._num_bytes > self._max_bytes or len(self._entries) > _MOST_FILES:
                self._drop(next(iter(self._entries)))
                self._num_evicted += 1
            return file

    def find(self, caller: Caller, file_id: str, name: str | None = None) -> StoredFile:
        """A file of this caller; `name` is the request's field that names it.

        Changes: the file counts as used now. Raises NotFound.
        """
        with self._lock:
            file = self._file(caller, file_id, name)
            self._entries.move_to_end(file_id)
            return file

    def look(self, caller: Caller, file_id: str) -> StoredFile:
        """Like `find`, without counting as a use. Pure."""
        with self._lock:
            return self._file(caller, file_id, None)

    def files(self, caller: Caller) -> list[StoredFile]:
        """All files of this caller, the oldest first. Pure."""
        owner = _owner(caller)
        with self._lock:
            own = [entry.file for entry in self._entries.values() if entry.key[0] == owner]
        return sorted(own, key=lambda file: file.number)

    def remove(self, caller: Caller, file_id: str) -> None:
        """Forget a file of this caller. Changes: the store. Raises NotFound."""
        with self._lock:
            self._file(caller, file_id, None)
            self._drop(file_id)

    def counters(self) -> dict[str, float]:
        """Gauges and counters in the form of `Client.counters`. Pure."""
        with self._lock:
            return {
                "files": float(len(self._entries)),
                "file_bytes": float(self._num_bytes),
                "file_uploads_total": float(self._num_added),
                "file_evictions_total": float(self._num_evicted),
            }

    def _file(self, caller: Caller, file_id: str, name: str | None) -> StoredFile:
        entry = self._entries.get(file_id)
        if entry is None or entry.key[0] != _owner(caller):
            message = f"there is no file {shown(file_id)}, or no more"
            hint = "upload it again with POST /v1/files"
            raise NotFound(
                message, hint=hint, field=name, what="file", name=file_id[:_MAX_NAME]
            )
        return entry.file

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
