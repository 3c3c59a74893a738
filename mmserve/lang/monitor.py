"""One lock and one signal for all states of a run, for threads and event loops alike."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["Monitor"]


class Monitor:
    """Guards every state of a run; whoever changes one calls `notify` while holding it.

    `interrupt` is called when Ctrl-C arrives in a waiting thread.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition(threading.RLock())
        self._wakers: set[Callable[[], None]] = set()
        self.interrupt: Callable[[], None] = lambda: None

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._condition.release()

    def notify(self) -> None:
        """Wake all who wait. Call it while holding the monitor."""
        self._condition.notify_all()
        for wake in tuple(self._wakers):
            wake()

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Block this thread until `is_ready`, which is asked while the monitor is held."""
        try:
            with self._condition:
                self._condition.wait_for(is_ready)
        except KeyboardInterrupt:
            self.interrupt()
            raise

    async def wait_async(self, is_ready: Callable[[], bool]) -> None:
        """Like `wait`, without blocking the event loop."""
        import asyncio  # noqa: PLC0415  slow to import, and most programs do without

        loop = asyncio.get_running_loop()
        changed = asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed meanwhile
                loop.call_soon_threadsafe(changed.set)

        with self:
            self._wakers.add(wake)
        try:
            while True:
                changed.clear()
                with self:
                    if is_ready():
                        return
                await changed.wait()
        finally:
            with self:
                self._wakers.discard(wake)
