"""Which slots of the KV store are free, page by page.

Attention reads a contiguous run of slots without gathering, so a taker gets, in this order:

    1  what is left of the page of its last slot, which is its own already
    2  the pages right after that, if they are free
    3  the lowest run of wholly free blocks that is long enough: room to grow in place
    4  a run that is long enough in the next few blocks, going round
    5  free pages wherever they come next, going round

A page is taken and freed as a whole: it is freed with its first slot.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.core import LedgerBroken

__all__ = ["SlotPool"]

_BLOCK_SLOTS = 32
_WINDOW = 2048
"""Pages or blocks looked at together: 10 us; a whole pool of a million would be 1 ms."""
_NONE = np.empty(0, dtype=np.int64)


class SlotPool:
    """Free list of the pages that `num_slots` slots, numbered from 0, make up."""

    def __init__(self, num_slots: int, page_tokens: int = 1) -> None:
        self.page_tokens = page_tokens
        num_pages = num_slots // page_tokens
        self.num_slots = num_pages * page_tokens
        self.num_free = self.num_slots
        """Slots of free pages."""
        self._block_pages = max(1, _BLOCK_SLOTS // page_tokens)
        num_blocks = -(-num_pages // self._block_pages)
        self._is_free = np.ones(num_pages, dtype=np.bool_)
        self._num_free_of_block = np.full(num_blocks, self._block_pages, dtype=np.int32)
        if num_pages % self._block_pages:
            self._num_free_of_block[-1] = num_pages % self._block_pages
        self._whole_blocks = np.flatnonzero(
            self._num_free_of_block == self._block_pages
        ).tolist()
        """A heap that has all wholly free blocks, and some that are not so any more."""
        self._is_listed = self._num_free_of_block == self._block_pages
        self._cursor = 0
        """Block where the search for single pages goes on."""

    def num_left_after(self, num_held: int) -> int:
        """Slots left in the last page of a taker that holds `num_held` slots. Pure."""
        return -num_held % self.page_tokens

    def foresee(self, last_slots: Sequence[int]) -> list[int] | None:
        """What takers with these last slots would get if each took one more, in this order.

        None if there is no wholly free block for one that cannot grow in place. Pure.
        """
        taken: set[int] = set()
        touched: set[int] = set()
        slots = []
        for last in last_slots:
            page, offset = divmod(last + 1, self.page_tokens)
            if not offset:
                if not self._is_open(page) or page in taken:
                    block = self._next_whole_block(touched)
                    if block is None:
                        return None
                    page = block * self._block_pages
                taken.add(page)
                touched.add(page // self._block_pages)
            slots.append(page * self.page_tokens + offset)
        return slots

    def _is_open(self, page: int) -> bool:
        return page < len(self._is_free) and bool(self._is_free[page])

    def _next_whole_block(self, touched: set[int]) -> int | None:
        """The lowest wholly free block that is not among `touched`. Pure."""
        whole = np.flatnonzero(self._num_free_of_block == self._block_pages)
        return next((int(b) for b in whole[: len(touched) + 1] if b not in touched), None)

    def allocate(self, num_tokens: int, *, after: int | None = None) -> NDArray[np.int64]:
        """Slots int64 [num_tokens], contiguous where possible, right behind `after` at best.

        Args:
            num_tokens: slots wanted.
            after: the taker's last slot; what is left of its page is used first.

        Raises:
            LedgerBroken: fewer are free; ask `num_free` first.

        Changes: the pages are no longer free.
        Cost: O(num_tokens) if the pages behind `after` are free, else a look at every block.
        """
        size = self.page_tokens
        if num_tokens == 1 and after is not None and (after + 1) % size:
            return np.array((after + 1,), dtype=np.int64)
        num_left = 0 if after is None else min(num_tokens, -(after + 1) % size)
        num_pages = -(-(num_tokens - num_left) // size)
        if num_pages * size > self.num_free:
            message = f"{num_pages} pages of {size} asked for, {self.num_free} slots are free"
            raise LedgerBroken(message, want=num_pages * size, free=self.num_free)
        next_page = None if after is None else (after + 1 + num_left) // size
        pages = self._take(num_pages, next_page)
        if size == 1:
            return pages
        slots = (pages[:, None] * size + np.arange(size)).ravel()[: num_tokens - num_left]
        if after is None or not num_left:
            return slots
        return np.concatenate((np.arange(after + 1, after + 1 + num_left), slots))

    def give_back(self, slots: NDArray[np.int64]) -> None:
        """Free the pages whose first slot is among slots int64 [n].

        Raises:
            LedgerBroken: one of them is free already, or comes twice.

        Changes: they may be allocated again.
        """
        size = self.page_tokens
        pages = slots if size == 1 else slots[slots % size == 0] // size
        if not len(pages):
            return
        if self._is_free[pages].any() or len(np.unique(pages)) != len(pages):
            raise LedgerBroken("a slot was freed twice", num_slots=len(slots))
        self._is_free[pages] = True
        blocks = pages // self._block_pages
        np.add.at(self._num_free_of_block, blocks, 1)
        self.num_free += len(pages) * size
        is_new = (self._num_free_of_block[blocks] == self._block_pages) & ~self._is_listed[
            blocks
        ]
        for block in np.unique(blocks[is_new]).tolist():
            self._is_listed[block] = True
            heapq.heappush(self._whole_blocks, block)

    def free_slots(self) -> NDArray[np.int64]:
        """All slots of free pages, ascending. Pure."""
        pages = np.flatnonzero(self._is_free)
        return (pages[:, None] * self.page_tokens + np.arange(self.page_tokens)).ravel()

    def verify(self) -> None:
        """Raise LedgerBroken if the counts disagree with the list. Pure."""
        num_free = int(self._is_free.sum()) * self.page_tokens
        if num_free != self.num_free:
            message = f"{num_free} slots are free, {self.num_free} are counted"
            raise LedgerBroken(message, want=num_free, got=self.num_free)
        blocks = np.flatnonzero(self._is_free) // self._block_pages
        free = np.bincount(blocks, minlength=len(self._num_free_of_block))
        if not np.array_equal(free, self._num_free_of_block):
            raise LedgerBroken("free pages of a block are miscounted")

    def _take(self, num_pages: int, next_page: int | None) -> NDArray[np.int64]:
        """Pages int64 [num_pages]; the counts follow."""
        if not num_pages:
            return _NONE
        if num_pages == 1:
            return self._take_one(self._choose_one(next_page))
        pages = self._choose(num_pages, next_page)
        self._is_free[pages] = False
        np.subtract.at(self._num_free_of_block, pages // self._block_pages, 1)
        self.num_free -= num_pages * self.page_tokens
        return pages

    def _take_one(self, page: int) -> NDArray[np.int64]:
        """The way of every generated token, so without vector work: 1 us."""
        self._is_free[page] = False
        self._num_free_of_block[page // self._block_pages] -= 1
        self.num_free -= self.page_tokens
        return np.array((page,), dtype=np.int64)

    def _choose_one(self, next_page: int | None) -> int:
        if (
            next_page is not None
            and next_page < len(self._is_free)
            and self._is_free[next_page]
        ):
            return next_page
        block = self._free_blocks(1)
        if block is not None:
            return block * self._block_pages
        start = self._cursor * self._block_pages
        place = int(self._is_free[start : start + _WINDOW].argmax())
        if self._is_free[start + place]:
            return start + place
        return int(self._gather(1)[0])

    def _choose(self, num_pages: int, next_page: int | None) -> NDArray[np.int64]:
        if next_page is not None:
            run = self._is_free[next_page : next_page + num_pages]
            if len(run) == num_pages and run.all():
                return np.arange(next_page, next_page + num_pages)
        size = self._block_pages
        block = self._free_blocks(-(-num_pages // size))
        if block is not None:
            return np.arange(block * size, block * size + num_pages)
        start = self._cursor * size
        run_start = _lowest_run(self._is_free[start : start + _WINDOW], num_pages)
        if run_start is not None:
            return np.arange(start + run_start, start + run_start + num_pages)
        return self._gather(num_pages)

    def _free_blocks(self, num_blocks: int) -> int | None:
        """The lowest run of wholly free blocks. Changes: the heap loses blocks that are not."""
        heap = self._whole_blocks
        while heap and self._num_free_of_block[heap[0]] < self._block_pages:
            self._is_listed[heapq.heappop(heap)] = False
        if num_blocks == 1:
            return heap[0] if heap else None
        if len(heap) < num_blocks:
            return None
        for first in range(heap[0], len(self._num_free_of_block), _WINDOW):
            window = self._num_free_of_block[first : first + _WINDOW + num_blocks - 1]
            start = _lowest_run(window == self._block_pages, num_blocks)
            if start is not None:
                return first + start
        return None

    def _gather(self, num_pages: int) -> NDArray[np.int64]:
        """Free pages of the blocks that come first, from the cursor on."""
        size, num_blocks = self._block_pages, len(self._num_free_of_block)
        found: list[NDArray[np.int64]] = []
        num_left = num_pages
        while num_left > 0:
            end = min(self._cursor + _WINDOW // size, num_blocks)
            first = self._cursor * size
            free = np.flatnonzero(self._is_free[first : end * size])[:num_left] + first
            found.append(free)
            num_left -= len(free)
            if num_left > 0:
                self._cursor = end % num_blocks
        self._cursor = int(found[-1][-1]) // size
        return np.concatenate(found)


def _lowest_run(is_free: NDArray[np.bool_], length: int) -> int | None:
    """Start of the lowest run of at least `length` True values, or None."""
    if length == 1:
        first = int(is_free.argmax())
        return first if is_free[first] else None
    edges = np.flatnonzero(np.diff(is_free, prepend=False, append=False))
    starts, ends = edges[0::2], edges[1::2]
    fitting = np.flatnonzero(ends - starts >= length)
    return int(starts[fitting[0]]) if len(fitting) else None
