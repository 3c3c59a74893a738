"""A record of an earlier run, as it is found in an output file or an index."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

__all__ = ["Kept", "Key", "asked_digest", "kept_record"]

Key = tuple[int, int, int]
"""(line, question index, sample index): which record it is."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A written record.

    Args:
        key: which it is.
        asked: digest of the row's id and the question, see `asked_digest`.
        is_error: whether it is an error record.
        content: its line, with the line end.
    """

    key: Key
    asked: bytes
    is_error: bool
    content: bytes = field(repr=False)


def asked_digest(row_id: str | int, question: str | None) -> bytes:
    """16 bytes that name what was asked, and by which row. Pure."""
    named = json.dumps([row_id, question]).encode()
    return hashlib.blake2b(named, digest_size=16).digest()


def kept_record(content: bytes) -> Kept | None:
    """The record that a line holds; None if it is no whole record of this tool. Pure."""
    if not content.endswith(b"\n"):
        return None
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return None
    match fields:
        case {
            "id": str() | int() as row_id,
            "line": int() as line,
            "question_index": int() as index,
            "question": str() | None as question,
            "error": dict() | None as error,
        }:
            sample = fields.get("sample_index") or 0
            key = (line, index, sample if isinstance(sample, int) else 0)
            return Kept(key, asked_digest(row_id, question), error is not None, content)
    return None
