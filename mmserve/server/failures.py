"""Failures as the log has them: where, and of what kind, but not what the request held."""

from __future__ import annotations

import traceback

from mmserve.core import MmserveError

__all__ = ["failure_text"]

_MAX_LINE = 400
_MAX_LINES = 40


def failure_text(error: BaseException) -> str:
    """The places where an exception passed, then its kind, and its words if it is ours.

    The words of other exceptions may be part of a request, so they are left out. Pure.
    """
    lines = "".join(traceback.format_tb(error.__traceback__)).splitlines()
    words = type(error).__name__
    if isinstance(error, MmserveError):
        words += f": {error}"
    cause = error.__cause__ or error.__context__
    if cause is not None:
        words += f" (from {type(cause).__name__})"
    return "\n".join(line[:_MAX_LINE] for line in [*lines[-_MAX_LINES:], words])
