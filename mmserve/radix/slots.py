"""Which slots of the KV store are free.

Attention reads a contiguous run of slots without gathering, so a taker gets, in this order:

    1  the slots right after its last one, if they are free
    2  the lowest run that starts a block of 32 wholly free slots: room to grow in place
    3  the lowest run that is long enough
    4  the lowest free slots
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken

__all__ = ["SlotPool"]

_BLOCK = 32


class SlotPool:
    """Free list of `num_slots` slots, numbered from 0."""

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self.num_free = num_slots
        self._is_free = np.ones(num_slots, dtype=np.bool_)
        self._taken_of_block = np.zeros(-(-num_slots // _BLOCK), dtype=np.int64)

    def allocate(self, num_tokens: int, *, after: int | None = None) -> NDArray[np.int64]:
        """Slots int64 [num_tokens], contiguous where possible, right behind `after` at best.

        Raises:
            LedgerBroken: fewer are free; ask `num_free` first.

        Changes: the slots are no longer free.
        Cost: O(num_tokens) if the slots behind `after` are free, else a scan of the pool.
        """
        if num_tokens > self.num_free:
            message = f"{num_tokens} slots asked for, {self.num_free} are free"
            raise LedgerBroken(message, want=num_tokens, free=self.num_free)
        if num_tokens == 1 and after is not None and self._is_free[after + 1 : after + 2].any():
            return self._take_one(after + 1)
        slots = self._choose(num_tokens, after)
        self._is_free[slots] = False
        np.add.at(self._taken_of_block, slots // _BLOCK, 1)
        self.num_free -= num_tokens
        return slots

    def give_back(self, slots: NDArray[np.int64]) -> None:
        """Free slots int64 [n]. Changes: they may be allocated again.

        Raises:
            LedgerBroken: one of them is free already, or comes twice.
        """
        if not len(slots):
            return
        if self._is_free[slots].any() or len(np.unique(slots)) != len(slots):
            raise LedgerBroken("a slot was freed twice", num_slots=len(slots))
        self._is_free[slots] = True
        np.subtract.at(self._taken_of_block, slots // _BLOCK, 1)
        self.num_free += len(slots)

    def free_slots(self) -> NDArray[np.int64]:
        """All free slots, ascending. Pure."""
        return np.flatnonzero(self._is_free)

    def verify(self) -> None:
        """Raise LedgerBroken if the counts disagree with the list. Pure."""
        num_free = int(self._is_free.sum())
        if num_free != self.num_free:
            message = f"{num_free} slots are free, {self.num_free} are counted"
            raise LedgerBroken(message, want=num_free, got=self.num_free)
        taken = np.bincount(
            np.flatnonzero(~self._is_free) // _BLOCK, minlength=len(self._taken_of_block)
        )
        if not np.array_equal(taken, self._taken_of_block):
            raise LedgerBroken("slots taken of a block are miscounted")

    def _take_one(self, slot: int) -> NDArray[np.int64]:
        """The way of every generated token, so without vector work: 1 us."""
        self._is_free[slot] = False
        self._taken_of_block[slot // _BLOCK] += 1
        self.num_free -= 1
        return np.array((slot,), dtype=np.int64)

    def _choose(self, num_tokens: int, after: int | None) -> NDArray[np.int64]:
        if after is not None:
            run = self._is_free[after + 1 : after + 1 + num_tokens]
            if len(run) == num_tokens and run.all():
                return np.arange(after + 1, after + 1 + num_tokens)
        num_blocks = -(-num_tokens // _BLOCK)
        block = _lowest_run(self._taken_of_block == 0, num_blocks)
        if block is not None and block * _BLOCK + num_tokens <= self.num_slots:
            return np.arange(block * _BLOCK, block * _BLOCK + num_tokens)
        if num_tokens == 1:
            return np.array([self._is_free.argmax()], dtype=np.int64)
        start = _lowest_run(self._is_free, num_tokens)
        if start is not None:
            return np.arange(start, start + num_tokens)
        return np.flatnonzero(self._is_free)[:num_tokens]


def _lowest_run(is_free: NDArray[np.bool_], length: int) -> int | None:
    """Start of the lowest run of at least `length` True values, or None."""
    if length == 0:
        return 0
    edges = np.flatnonzero(np.diff(is_free, prepend=False, append=False))
    starts, ends = edges[0::2], edges[1::2]
    fitting = np.flatnonzero(ends - starts >= length)
    return int(starts[fitting[0]]) if len(fitting) else None
