"""Addresses: of servers as a user gives them, and of local files as a server takes them."""

from __future__ import annotations

import base64
import mimetypes
import threading
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from mmserve.core import BadRequest, MediaRefused

__all__ = [
    "DataAddresses",
    "bytes_address",
    "check_file",
    "data_address",
    "file_type",
    "server_urls",
]

_SCHEMES = ("http", "https")
_MAX_KEPT = 4


def server_urls(given: Iterable[str]) -> tuple[str, ...]:
    """The servers that `--url` names: each may name several, with commas between them. Pure.

    Raises BadRequest for what is no `http://host:port`, and for a server named twice.
    """
    urls: list[str] = []
    for word in (piece.strip() for text in given for piece in text.split(",")):
        if not word:
            continue
        url = word.rstrip("/")
        if not _is_server(url):
            message = f"url is {word!r}, which is no address of a server"
            hint = "it looks like http://host:port"
            raise BadRequest(message, field="url", reason="value", hint=hint)
        if url in urls:
            message = f"url names {url} twice"
            raise BadRequest(message, field="url", reason="conflict", hint="name it once")
        urls.append(url)
    return tuple(urls)


def _is_server(url: str) -> bool:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in _SCHEMES and bool(parts.hostname)


def check_file(path: str) -> tuple[str, int, int]:
    """What names a local file's content: its path, size and time of change.

    Raises MediaRefused if it is missing, empty or no file.
    """
    place = Path(path).expanduser()
    try:
        facts = place.stat()
        is_file = place.is_file()
    except OSError as error:
        raise _unreadable(path, error) from error
    if not is_file:
        raise MediaRefused(f"{path}: is a directory or no plain file", reason="fetch_failed")
    if not facts.st_size:
        raise MediaRefused(f"{path}: the file is empty", reason="undecodable")
    return str(place), facts.st_size, facts.st_mtime_ns


def file_type(path: str) -> str:
    """The media type that the name tells. Pure."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def data_address(path: str) -> str:
    """A local file as a data: address. Raises MediaRefused. Cost: reads the file."""
    place, _, _ = check_file(path)
    try:
        content = Path(place).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error
    return bytes_address(content, file_type(path))


def bytes_address(content: bytes, kind: str = "application/octet-stream") -> str:
    """Content as a data: address. Pure."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def _unreadable(path: str, error: OSError) -> MediaRefused:
    reason = (error.strerror or str(error)).lower()
    return MediaRefused(f"{path}: {reason}", reason="fetch_failed")


class DataAddresses:
    """The last few files as data: addresses, for a row's other questions. Safe in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, int, int], str] = OrderedDict()

    def of(self, path: str) -> str:
        """As `data_address`, which reads the file once. Changes: what is kept."""
        key = check_file(path)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = data_address(path)
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
            self._kept.move_to_end(key)
            return self._kept[key]
