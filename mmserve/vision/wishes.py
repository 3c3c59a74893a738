"""Frames of a clip that somebody wants, as numbers; more may come while a pass runs."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable

__all__ = ["Wishes"]


class Wishes:
    """Sorted numbers, none twice. Safe from any thread.

    Args:
        numbers: wanted from the start.
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._lock = threading.Lock()
        self._numbers = sorted(set(numbers))
        self._on_added: Callable[[], None] | None = None
        self.is_over = False

    def __bool__(self) -> bool:
        """Whether any is wanted."""
        return bool(self._numbers)

    def add(self, number: int) -> None:
        """Changes: one more number is wanted; who listens is told."""
        with self._lock:
            at = bisect_left(self._numbers, number)
            if at < len(self._numbers) and self._numbers[at] == number:
                return
            insort(self._numbers, number)
            told = self._on_added
        if told is not None:
            told()

    def remove(self, number: int) -> None:
        """Changes: the number is not wanted any more. ValueError if it was not."""
        with self._lock:
            if not self.is_over:
                self._numbers.remove(number)

    def end(self) -> None:
        """Changes: nothing is wanted any more, which who listens is told."""
        with self._lock:
            self._numbers.clear()
            self.is_over = True
            told = self._on_added
        if told is not None:
            told()

    def next_from(self, position: int) -> int | None:
        """The lowest number wanted at or after `position`. Pure."""
        with self._lock:
            at = bisect_left(self._numbers, position)
            return self._numbers[at] if at < len(self._numbers) else None

    def all_from(self, position: int) -> list[int]:
        """All numbers wanted at or after `position`, rising. Pure."""
        with self._lock:
            return self._numbers[bisect_left(self._numbers, position) :]

    def listen(self, on_added: Callable[[], None] | None) -> None:
        """Changes: who is told, from the changer's thread, of a number added or of the end."""
        with self._lock:
            self._on_added = on_added
