"""Masks that were computed, the least recently used ones forgotten past a bound of bytes."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["MaskMemo", "once_per_vocabulary"]

_Made = TypeVar("_Made")


def once_per_vocabulary(
    make: Callable[[Vocabulary], _Made],
) -> Callable[[Vocabulary], _Made]:
    """The function, with what it made of each living vocabulary remembered. Thread-safe."""
    known: WeakKeyDictionary[Vocabulary, _Made] = WeakKeyDictionary()
    lock = threading.Lock()

    @functools.wraps(make)
    def made(vocabulary: Vocabulary) -> _Made:
        with lock:
            if vocabulary not in known:
                known[vocabulary] = make(vocabulary)
            return known[vocabulary]

    return made


class MaskMemo:
    """Masks by state. Mutable, safe from any thread.

    Args:
        compute: the mask of a state; it may be computed twice if two threads ask at once.
        max_bytes: most bytes kept; the last mask is kept in any case.
    """

    def __init__(self, compute: Callable[[int], NDArray[np.uint32]], max_bytes: int) -> None:
        self._compute = compute
        self._max_bytes = max_bytes
        self._masks: OrderedDict[int, NDArray[np.uint32]] = OrderedDict()
        self._lock = threading.Lock()
        self.num_bytes = 0

    def get(self, state: int) -> NDArray[np.uint32]:
        """The mask of a state, not to be written. Changes: what is remembered."""
        with self._lock:
            found = self._masks.get(state)
            if found is not None:
                self._masks.move_to_end(state)
                return found
        mask = self._compute(state)
        mask.flags.writeable = False
        with self._lock:
            kept = self._masks.setdefault(state, mask)
            if kept is mask:
                self.num_bytes += mask.nbytes
            while self.num_bytes > self._max_bytes and len(self._masks) > 1:
                self.num_bytes -= self._masks.popitem(last=False)[1].nbytes
        return kept
