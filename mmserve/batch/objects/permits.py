"""Addresses in object stores, and which of them a run may read.

    s3://bucket/clips/../clips/a.mp4 -> ("s3", ("bucket", "clips", "a.mp4"))
    permitted if some prefix has the same scheme and begins the names: whole names only

What is checked is what is fetched: the store sees the address without `.` and `..`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mmserve.core import BadRequest, MediaRefused

__all__ = ["ObjectAddress", "Permits", "is_object"]

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_GUARDED = frozenset({"http", "https", "data", "file"})
"""Addresses that the engine itself reads, behind its guards."""
_REFUSED = _GUARDED | {
    *("local", "dir", "zip", "tar", "libarchive", "reference", "generic", "chained"),
    *("cached", "simplecache", "filecache", "blockcache"),
}
"""Schemes that would lead to this machine's files, or to addresses inside of addresses."""
_MAX_CHARACTERS = 2048
_MAX_SHOWN = 200


@dataclass(frozen=True, slots=True)
class ObjectAddress:
    """A place in an object store; the first name is its bucket or container."""

    scheme: str
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.scheme}://{'/'.join(self.names)}"

    @classmethod
    def parse(cls, text: str) -> ObjectAddress:
        """The address without `.`, `..` and empty ends. Pure. Raises ValueError saying why."""
        match = _SCHEME.match(text)
        if match is None:
            raise ValueError("has no scheme, as s3:// is one")
        if len(text) > _MAX_CHARACTERS:
            raise ValueError(f"is longer than {_MAX_CHARACTERS:,} characters")
        if "::" in text or "\\" in text or not text.isprintable():
            raise ValueError("holds ::, a backslash or a control character")
        names: list[str] = []
        for name in text[match.end() :].split("/"):
            if name == "..":
                if not names:
                    raise ValueError("leads out of its store with ..")
                names.pop()
            elif name not in ("", "."):
                names.append(name)
        return cls(match[1].lower(), tuple(names))

    def is_below(self, prefix: ObjectAddress) -> bool:
        """Whether it is `prefix` or lies below it. Pure."""
        num = len(prefix.names)
        return self.scheme == prefix.scheme and self.names[:num] == prefix.names


def is_object(text: str) -> bool:
    """Whether an address is one of an object store, permitted or not. Pure."""
    match = _SCHEME.match(text)
    return match is not None and match[1].lower() not in _GUARDED


class Permits:
    """What `--allow-store` permits; nothing by default.

    Args:
        prefixes: `s3://bucket/clips/` each.

    Raises BadRequest for what is no prefix of an object store.
    """

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._prefixes = tuple(_prefix(text) for text in prefixes)

    @property
    def schemes(self) -> tuple[str, ...]:
        """Schemes of which something is permitted, each once. Pure."""
        return tuple(dict.fromkeys(prefix.scheme for prefix in self._prefixes))

    def checked(self, text: str) -> ObjectAddress:
        """The address to fetch. Pure. Raises MediaRefused if it is not permitted."""
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."
        try:
            address = ObjectAddress.parse(text)
        except ValueError as error:
            raise MediaRefused(f"{shown} {error}", reason="fetch_forbidden") from None
        if not any(address.is_below(prefix) for prefix in self._prefixes):
            place = f"{address.scheme}://{'/'.join(address.names[:1])}/"
            raise MediaRefused(
                f"{shown} is in a store that is not permitted",
                hint=f"--allow-store {place} permits it",
                reason="fetch_forbidden",
            )
        return address


def _prefix(text: str) -> ObjectAddress:
    try:
        prefix = ObjectAddress.parse(text)
    except ValueError as error:
        raise _no_prefix(f"{text!r} {error}", "it looks like s3://bucket/folder/") from None
    if prefix.scheme in _REFUSED:
        hint = "http addresses need no permission, files are permitted with --media-folder"
        raise _no_prefix(f"{text!r} is in no object store", hint)
    return prefix


def _no_prefix(message: str, hint: str) -> BadRequest:
    return BadRequest(f"allow_store: {message}", field="allow_store", reason="value", hint=hint)
