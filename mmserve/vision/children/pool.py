"""All children of this process, lent to whoever decodes; started late, ended at exit."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mmserve.core import Broken, MediaRefused
from mmserve.vision.children.process import Child

__all__ = ["Children", "ChildrenCounters", "shared_children"]

_LOG = logging.getLogger(__name__)
_MOST_JOBS = 2000


@dataclass(frozen=True, slots=True)
class ChildrenCounters:
    """What has become of children since the process began.

    Args:
        num_started: processes started.
        num_lost: of these, how many were ended or died in the middle of a job.
        num_alive: that wait or work now.
    """

    num_started: int
    num_lost: int
    num_alive: int


class Children:
    """Children that wait for jobs, the last used first. Safe from any thread.

    A child serves at most 2,000 jobs, so that what a library loses does not pile up.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Child] = []
        self._num_kept = 0
        self._num_started = 0
        self._num_lost = 0
        self._num_lent = 0

    def expect(self, num_kept: int) -> None:
        """Changes: at least so many children may wait for later jobs."""
        with self._lock:
            self._num_kept = max(self._num_kept, num_kept)

    def warm(self) -> None:
        """Start a child, if there is none at all, so that a job to come need not wait.

        One that does not start is noted in the log; the job will tell.
        """
        with self._lock:
            if self._waiting or self._num_lent:
                return
            try:
                self._waiting.append(self._started())
            except Broken as error:
                _LOG.error("%s", error)

    @contextmanager
    def lent(self, *, is_fresh: bool = False) -> Iterator[Child]:
        """A child for one job, new if asked for; it comes back sound, or is ended.

        Any exception but a refusal may have left it in the middle of its job.
        """
        child = self._take(is_fresh=is_fresh)
        try:
            yield child
        except MediaRefused:
            raise
        except BaseException:
            child.is_sound = False
            raise
        finally:
            self._bring_back(child)

    def counters(self) -> ChildrenCounters:
        """A snapshot. Pure."""
        with self._lock:
            num_alive = len(self._waiting) + self._num_lent
            return ChildrenCounters(self._num_started, self._num_lost, num_alive)

    def process_ids(self) -> tuple[int, ...]:
        """Of the children that wait. Pure."""
        with self._lock:
            return tuple(child.process_id for child in self._waiting)

    def close(self) -> None:
        """End all children that wait. Idempotent; more may be started afterwards."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for child in waiting:
            child.end()

    def forget(self) -> None:
        """Leave all children to the process that started them. Changes: none is known here."""
        self._lock = threading.Lock()
        for child in self._waiting:
            child.leave()
        self._waiting = []
        self._num_started = self._num_lost = self._num_lent = 0

    def _take(self, *, is_fresh: bool) -> Child:
        with self._lock:
            child = None
            while self._waiting and child is None and not is_fresh:
                child = self._waiting.pop()
                if not child.is_alive():
                    child.end()
                    child = None
            child = child or self._started()
            self._num_lent += 1
        return child

    def _bring_back(self, child: Child) -> None:
        is_kept = child.is_sound and child.num_jobs < _MOST_JOBS
        if is_kept:
            child.rest()
        with self._lock:
            self._num_lent -= 1
            self._num_lost += not child.is_sound
            is_kept = is_kept and len(self._waiting) < self._num_kept
            if is_kept:
                self._waiting.append(child)
        if not is_kept:
            child.end()

    def _started(self) -> Child:
        self._num_started += 1
        return Child()


_SHARED = Children()
atexit.register(_SHARED.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_SHARED.forget)


def shared_children() -> Children:
    """The children of this process."""
    return _SHARED
