"""Who of the servers is up, what each has under way, and which groups are at home there.

    group's key --known, server up--> its server
                --else--> first of its ranked servers that is up and not full

Full is 1.25 times an equal share of all questions under way, so that no server waits while
another has a queue. It counts for a group's first question only: a group is never split.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace

from mmserve.batch.remote.affinity import ranked
from mmserve.core import BackendFailed

__all__ = ["Board", "ServerCount"]

_LEEWAY = 1.25
_MAX_HOMES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCount:
    """What one server has done in a run.

    Args:
        url: its address.
        answered: questions.
        refused: questions that it gave an error for.
        moved: questions that it had under way when it was lost, and that others were asked.
        losses: times that it was taken out.
        under_way: questions at this moment.
        is_up: whether it is asked.
        uploads, uploaded_bytes: files sent to it.
    """

    url: str
    answered: int = 0
    refused: int = 0
    moved: int = 0
    losses: int = 0
    under_way: int = 0
    is_up: bool = True
    uploads: int = 0
    uploaded_bytes: int = 0


class Board:
    """The servers of a fleet. Safe from any thread.

    Args:
        urls: at least one.
        concurrency: questions that all servers together have under way when all is well.
    """

    def __init__(self, urls: tuple[str, ...], concurrency: int) -> None:
        self._lock = threading.Lock()
        self._concurrency = concurrency
        self._counts = {url: ServerCount(url=url) for url in urls}
        self._homes: OrderedDict[bytes, str] = OrderedDict()
        self._reasons: dict[str, str] = {}

    def take(self, key: bytes) -> str:
        """The server to ask a question of this group. Changes: it has one more under way.

        Raises BackendFailed if none is up. Every `take` is followed by one of the endings.
        """
        with self._lock:
            url = self._homes.get(key)
            if url is None or not self._counts[url].is_up:
                url = self._homes[key] = self._choose(key)
            self._homes.move_to_end(key)
            if len(self._homes) > _MAX_HOMES:
                self._homes.popitem(last=False)
            self._add(url, under_way=1)
            return url

    def _choose(self, key: bytes) -> str:
        up = [url for url, count in self._counts.items() if count.is_up]
        if not up:
            reasons = "; ".join(self._reasons.values())
            num = len(self._counts)
            raise BackendFailed(
                f"no server answers, of {num}: {reasons}" if num > 1 else reasons,
                hint="is the server running?" if num == 1 else "are the servers running?",
                status=None,
            )
        limit = math.ceil(_LEEWAY * self._concurrency / len(up))
        order = ranked(key, up)
        free = (url for url in order if self._counts[url].under_way < limit)
        return next(free, order[0])

    def end_answered(self, url: str) -> None:
        """A question has its answer. Changes: the server's counts."""
        with self._lock:
            self._add(url, under_way=-1, answered=1)

    def end_refused(self, url: str) -> None:
        """A question has an error that is to be told. Changes: the server's counts."""
        with self._lock:
            self._add(url, under_way=-1, refused=1)

    def end_moved(self, url: str) -> None:
        """A question was lost with its server, or on the way. Changes: the server's counts."""
        with self._lock:
            self._add(url, under_way=-1, moved=1)

    def take_out(self, url: str, reason: str) -> bool:
        """Ask it nothing more. Whether it was up. Changes: which servers are up."""
        with self._lock:
            self._reasons[url] = reason
            if not self._counts[url].is_up:
                return False
            self._counts[url] = replace(self._counts[url], is_up=False)
            self._add(url, losses=1)
            return True

    def take_in(self, url: str) -> None:
        """Ask it again; groups that moved away stay away. Changes: which servers are up."""
        with self._lock:
            self._counts[url] = replace(self._counts[url], is_up=True)

    def out(self) -> list[str]:
        """Servers that are not asked. Pure."""
        with self._lock:
            return [url for url, count in self._counts.items() if not count.is_up]

    def counts(self) -> tuple[ServerCount, ...]:
        """What each has done so far, without uploads. Pure."""
        with self._lock:
            return tuple(self._counts.values())

    def _add(self, url: str, **changes: int) -> None:
        count = self._counts[url]
        values = {name: getattr(count, name) + change for name, change in changes.items()}
        self._counts[url] = replace(count, **values)
