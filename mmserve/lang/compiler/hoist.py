"""The prefix that a batch's rows share, computed once before they go on.

row 0   first call, waits ......... |
row 1   first call: common prefix of 0 and 1 -> one call that generates nothing
row 2   first call, waits ......... | all go on; later rows do not wait

The prefix is that of the rows' own first calls. A row that is alone for a moment goes on.
"""

from __future__ import annotations

import logging
import threading

from mmserve.core import (
    ImagePart,
    MmserveError,
    Part,
    SamplingParams,
    TextPart,
    Turn,
    VideoPart,
)
from mmserve.lang.backends.scoring import whole_output
from mmserve.lang.calls import acting_after, request_for, start_call
from mmserve.lang.execution import Execution

__all__ = ["Hoist", "common_prefix"]

_log = logging.getLogger("mmserve.lang")
_ALONE_S = 0.05
_LEAST_LETTERS = 64
_NOTHING = SamplingParams(max_new_tokens=0, temperature=0.0)


class Hoist:
    """One batch's shared prefix: not known, being computed, or over. Safe from all rows."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._first: tuple[Part, ...] | None = None
        self._is_taken = False
        self._is_over = False

    def row(self) -> RowGate:
        """The gate for a new row."""
        return RowGate(self)

    def pass_through(self, execution: Execution, timeout_s: float | None) -> None:
        """Called before a row's first call. Waits while the prefix is learnt or computed.

        What goes wrong with the prefix call is left to the rows' own calls, and so is what
        takes longer than `timeout_s`, the time that the row's call may take.
        """
        if self._is_over:
            return
        parts = execution.conversation.parts()
        with self._changed:
            if self._first is None:
                self._first = parts
                self._changed.wait_for(lambda: self._is_taken, _ALONE_S)
                self._is_over = self._is_over or not self._is_taken
            is_second = not self._is_taken and not self._is_over
            self._is_taken = True
            self._changed.notify_all()
            if not is_second:
                self._changed.wait_for(lambda: self._is_over, timeout_s)
                return
        try:
            self._compute(execution, common_prefix(self._first, parts), timeout_s)
        finally:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _compute(
        self, execution: Execution, prefix: tuple[Part, ...], timeout_s: float | None
    ) -> None:
        if not _is_worth_a_call(prefix):
            return
        request = request_for(execution.setting.options, prefix, _NOTHING)
        try:
            call = start_call(execution, request)
            with acting_after(timeout_s, call.cancel):
                whole_output(call)
        except MmserveError as error:
            _log.debug("the shared prefix of a batch was not computed: %s", error)


class RowGate:
    """Lets a row's first call through the hoist, and later ones at once."""

    def __init__(self, hoist: Hoist) -> None:
        self._hoist = hoist
        self._has_passed = False

    def __call__(self, execution: Execution, timeout_s: float | None) -> None:
        """Wait if this is the row's first call. Changes: the gate."""
        if not self._has_passed:
            self._has_passed = True
            self._hoist.pass_through(execution, timeout_s)


def common_prefix(first: tuple[Part, ...], second: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts with which both begin; a turn or text that differs later is cut there. Pure."""
    common: list[Part] = []
    for one, other in zip(first, second, strict=False):
        if one == other:
            common.append(one)
            continue
        cut = _cut(one, other)
        if cut is not None:
            common.append(cut)
        break
    return tuple(common)


def _cut(one: Part, other: Part) -> Part | None:
    if isinstance(one, TextPart) and isinstance(other, TextPart):
        pairs = zip(one.text, other.text, strict=False)
        length = next((k for k, (a, b) in enumerate(pairs) if a != b), None)
        length = min(len(one.text), len(other.text)) if length is None else length
        return TextPart(one.text[:length]) if length else None
    if isinstance(one, Turn) and isinstance(other, Turn) and one.role == other.role:
        inner = common_prefix(one.parts, other.parts)
        return Turn(one.role, inner, is_open=True)  # type: ignore[arg-type]
    return None


def _is_worth_a_call(parts: tuple[Part, ...]) -> bool:
    num_letters = 0
    for part in parts:
        inner = part.parts if isinstance(part, Turn) else (part,)
        if any(isinstance(piece, (ImagePart, VideoPart)) for piece in inner):
            return True
        num_letters += sum(len(piece.text) for piece in inner if isinstance(piece, TextPart))
    return num_letters >= _LEAST_LETTERS
