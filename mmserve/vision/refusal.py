"""Errors of this room, and how they come to name the part of the request they speak of.

Inside the room a message is a predicate ("is cut short: ..."); the plane puts the subject in
front of it ("image 2 is cut short: ...").
"""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from mmserve.core import MediaRefused, MmserveError

__all__ = ["MediaKind", "Reason", "named", "refused"]

MediaKind = Literal["image", "video"]
Reason = Literal["too_large", "undecodable", "unsupported", "fetch_forbidden", "fetch_failed"]

_Error = TypeVar("_Error", bound=MmserveError)


def refused(
    reason: Reason,
    predicate: str,
    *,
    hint: str | None = None,
    **fields: Any,  # noqa: ANN401
) -> MediaRefused:
    """A refusal whose message lacks its subject. Pure."""
    return MediaRefused(predicate, hint=hint, reason=reason, **fields)


def named(error: _Error, kind: MediaKind, index: int) -> _Error:
    """The same error about media part `index` (from 0) of a request. Pure."""
    fields = {**error.fields, "index": index}
    return type(error)(f"{kind} {index + 1} {error.message}", hint=error.hint, **fields)
