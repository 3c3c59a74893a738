"""Keeps runs of digits in JSON numbers short, so that a number always ends.

JSON allows numbers of any length and most schemas do not bound them. Outside of strings at most
18 digits stand in a row, 2 in an exponent; a value that must be longer may be.

    {"a": 123456789012345678   <- only  . e , }  may follow
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["DigitRun", "DigitTable"]

_MAX_DIGITS = 18
_MAX_EXPONENT = 2
_DIGITS = frozenset(b"0123456789")


@dataclass(frozen=True, slots=True)
class DigitRun:
    """Where JSON text stands: in a string, after a backslash, and how many digits came last."""

    is_string: bool = False
    is_escaped: bool = False
    is_exponent: bool = False
    num_digits: int = 0

    def after(self, piece: bytes) -> DigitRun:
        """The state after more text. Pure."""
        state = self
        for byte in piece:
            state = state._step(byte)
        return state

    @property
    def num_left(self) -> int:
        """Digits that may still come in this run."""
        if self.is_string:
            return _MAX_DIGITS
        return (_MAX_EXPONENT if self.is_exponent else _MAX_DIGITS) - self.num_digits

    def _step(self, byte: int) -> DigitRun:
        if self.is_string:
            if self.is_escaped:
                return replace(self, is_escaped=False)
            return DigitRun(is_string=byte != 0x22, is_escaped=byte == 0x5C)
        if byte in _DIGITS:
            return replace(self, num_digits=self.num_digits + 1)
        is_sign = self.is_exponent and self.num_digits == 0 and byte in b"+-"
        return DigitRun(is_string=byte == 0x22, is_exponent=byte in b"eE" or is_sign)


class DigitTable:
    """Which tokens of a vocabulary begin with how many digits. Never changes."""

    def __init__(self, pieces: Sequence[bytes], num_words: int) -> None:
        counts = np.zeros(num_words * 32, dtype=np.uint8)
        for token_id, piece in enumerate(pieces):
            counts[token_id] = min(len(piece) - len(piece.lstrip(b"0123456789")), 255)
        self._most = int(counts.max(initial=0))
        self._counts = counts

    def without_long_runs(
        self, allowed: NDArray[np.uint32], state: DigitRun, *, may_end: bool
    ) -> NDArray[np.uint32]:
        """The mask without tokens that make a run too long, unless only they may come.

        Args:
            allowed: uint32 [W], not changed.
            state: of the text so far.
            may_end: whether the text may end here.

        Pure.
        """
        if state.is_string or state.num_left >= self._most:
            return allowed
        short = np.packbits(self._counts <= max(state.num_left, 0), bitorder="little")
        kept = allowed & short.view("<u4")
        return kept if may_end or kept.any() else allowed
