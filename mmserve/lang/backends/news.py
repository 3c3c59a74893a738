"""What passes from the thread that receives a call's outputs to the one that reads them."""

from __future__ import annotations

import queue
from collections.abc import Iterator

from mmserve.core import Output

__all__ = ["News"]


class News:
    """Outputs of one call, then its end or error. Written from any thread, read by one."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Output | BaseException | None] = queue.SimpleQueue()

    def put(self, item: Output | BaseException | None) -> None:
        """Hand over an output, the error that ends the call, or None for its end."""
        self._items.put(item)

    def read(self) -> Iterator[Output]:
        """Outputs as they come. Raises the error."""
        while (item := self._items.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
