"""The Python body of a run, as the states of the run see it."""

from __future__ import annotations

import threading

__all__ = ["Body"]


class Body:
    """Whether the body still runs, where, and what came of it. Guarded by the run's monitor.

    While another thread runs it, names that nobody has appended yet may still appear.
    """

    def __init__(self) -> None:
        self._thread_id: int | None = None
        self.is_running = True
        self.value: object = None
        self.error: BaseException | None = None

    def enter(self) -> None:
        """The calling thread is the one that runs the body. Changes: the body."""
        self._thread_id = threading.get_ident()

    @property
    def is_elsewhere(self) -> bool:
        """Whether another thread than the caller may still append."""
        return self.is_running and threading.get_ident() != self._thread_id
