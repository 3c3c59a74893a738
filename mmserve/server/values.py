"""Small values as JSON says them."""

from __future__ import annotations

import math

__all__ = ["finite", "piece_text"]

_LEAST_LOGPROB = -9999.0


def finite(logprob: float | None) -> float | None:
    """A log-probability as JSON can hold it: minus infinity is -9999. Pure."""
    if logprob is None or math.isnan(logprob):
        return None
    return max(logprob, _LEAST_LOGPROB)


def piece_text(piece: bytes) -> str:
    """A token's text; U+FFFD where it holds part of a character. Pure."""
    return piece.decode("utf-8", "replace")
