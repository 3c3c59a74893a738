"""`file:` addresses: only regular files inside the media folder, reached without a single link.

The path is walked one component at a time from the opened folder, so nothing that changes on
disk between a check and the opening can lead out of it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mmserve.core import MediaConfig, MediaRefused
from mmserve.vision.refusal import refused

__all__ = ["read_file_url", "read_local_path"]

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def read_file_url(url: str, config: MediaConfig) -> bytes:
    """Bytes behind a `file:` address.

    Raises:
        MediaRefused: with one and the same text whether the target lies outside the folder, is
            a link, or does not exist; `too_large` for a permitted file over the limit.
    """
    try:
        names = _names_below(url, config.media_folder)
        if config.media_folder is None or not names:
            raise _not_served()
        descriptor = _open_below(Path(config.media_folder), names)
    except (OSError, ValueError):  # not there, or no name that a file could have
        raise _not_served() from None
    content = _read_regular(descriptor, config.max_media_bytes)
    if content is None:
        raise _not_served()
    return content


def read_local_path(path: str, config: MediaConfig) -> bytes:
    """Bytes of a file that the program's own user named. Raises MediaRefused with the path."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid path"
        raise refused("fetch_failed", f"cannot be read: {path!r}: {why}", path=path) from None
    content = _read_regular(descriptor, config.max_media_bytes)
    if content is None:
        kind = "is a directory" if Path(path).is_dir() else "is not a regular file"
        raise refused("fetch_failed", f"cannot be read: {path!r} {kind}", path=path)
    if not content:
        raise refused("undecodable", f"is empty: {path!r} has 0 bytes", path=path)
    return content


def _names_below(url: str, folder: str | None) -> tuple[str, ...]:
    """Components of the address below the folder; empty if it is not plainly below it."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if folder is None or parts.query or parts.fragment or parts.netloc not in ("", "localhost"):
        return ()
    names = tuple(name for name in path.split("/") if name)
    if "\0" in path or not path.startswith("/") or {".", ".."} & set(names):
        return ()
    for base in (Path(os.path.abspath(folder)), Path(folder).resolve()):  # noqa: PTH100 - keeps links
        depth = len(base.parts) - 1
        if names[:depth] == base.parts[1:]:
            return names[depth:]
    return ()


def _open_below(folder: Path, names: tuple[str, ...]) -> int:
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for place, name in enumerate(names):
        flags = _OPEN_FILE if place == len(names) - 1 else _OPEN_FOLDER
        try:
            following = os.open(name, flags, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _read_regular(descriptor: int, limit_bytes: int) -> bytes | None:
    """Content of an opened regular file, None for anything else. Changes: closes it."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        return None
    with os.fdopen(descriptor, "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        message = f"has {max(facts.st_size, len(content))} bytes, the limit is {limit_bytes}"
        raise refused("too_large", message, limit_bytes=limit_bytes)
    return content


def _not_served() -> MediaRefused:
    return refused(
        "fetch_forbidden",
        "is a file: address that is not served",
        hint="only plain files inside the media folder are, without links on the way",
    )
