"""Masks of the rows of one step that stand under a grammar, all filled in one call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from mmserve.core import MaskSource, Matcher, MmserveError
from mmserve.sched.choice import matcher_error
from mmserve.sched.step import PlannedRow

__all__ = ["step_masks"]


class _StepMasks:
    """A `core.MaskSource` over the matchers of a step's rows."""

    def __init__(self, matchers: Mapping[int, Matcher]) -> None:
        self._matchers = matchers

    def fill(self) -> Mapping[int, NDArray[np.uint32] | MmserveError]:
        """See `core.MaskSource`. Pure."""
        return {place: _mask_of(matcher) for place, matcher in self._matchers.items()}


def step_masks(rows: Iterable[PlannedRow]) -> MaskSource | None:
    """Masks for the rows that draw under a grammar; None if there are none. Pure."""
    matchers = {
        place: planned.sequence.spec.matcher
        for place, planned in enumerate(rows)
        if planned.row.sampling is not None
        and planned.sequence.spec.matcher is not None
        and planned.sequence.max_new
    }
    return _StepMasks(matchers) if matchers else None


def _mask_of(matcher: Matcher) -> NDArray[np.uint32] | MmserveError:
    try:
        return matcher.allowed()
    except BaseException as error:  # noqa: BLE001  (a panic in Rust is no Exception)
        return matcher_error(error)
