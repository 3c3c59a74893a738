"""Hints: media fetched, identified and handed to the loop before a request asks about them.

prepare(part) -> [at most 64 wait] -> fetch, header -> loop -> sched, when it has time
                                                        |
                        a request meanwhile shares all that is done or under way

A hint is never an error: what cannot be had is refused when a request uses it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from mmserve.core import ImagePart, MmserveError, VideoPart
from mmserve.vision import MediaItem, MediaPlane

__all__ = ["EarlyItems", "Hints", "Take"]

_MAX_WAITING = 64
"""Hints that may wait for a thread; more are let go."""
_NUM_THREADS = 4
_log = logging.getLogger(__name__)

Take = Callable[[tuple[MediaItem, ...], str], None]
"""Takes the items of a hint, and whose hint it is."""


class Hints:
    """Fetches and identifies what hints name, in threads of its own. Safe from any thread.

    Requests have other threads, so that a slow address in a hint holds nobody up.

    Args:
        plane: the media plane, or None for a model that sees no pictures.
        take: gets what was identified, from one of the threads.
    """

    def __init__(self, plane: MediaPlane | None, take: Take) -> None:
        self._plane = plane
        self._take = take
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="mmserve-hints")
        self._lock = threading.Lock()
        self._num_waiting = 0

    def add(self, part: ImagePart | VideoPart, salt: str, client: str) -> None:
        """Take a hint; returns at once, raises nothing. Changes: what is under way."""
        plane = self._plane
        if plane is None:
            return
        with self._lock:
            if self._num_waiting >= _MAX_WAITING:
                _log.debug("a hint was let go: %d wait", self._num_waiting)
                return
            self._num_waiting += 1
        plane.expect(part, salt=salt)
        try:
            self._pool.submit(self._prepare, plane, part, salt, client)
        except RuntimeError:  # the pool is shut down
            _log.debug("a hint came after the engine was closed")

    def close(self) -> None:
        """Let what waits go, wait for what is under way. Idempotent."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _prepare(
        self, plane: MediaPlane, part: ImagePart | VideoPart, salt: str, client: str
    ) -> None:
        with self._lock:
            self._num_waiting -= 1
        try:
            resolved = plane.prepare(part, salt=salt)
        except MmserveError as error:
            _log.debug("a hint came to nothing: %s", error)
        except Exception:  # noqa: BLE001  (whatever it is, it is no request's)
            _log.exception("a hint could not be prepared")
        else:
            if resolved is not None:
                self._take(resolved.items, client)


class EarlyItems:
    """How to decode what is only hinted at; belongs to the loop's thread.

    Args:
        is_hinted: whether the scheduler still takes a digest for hinted at.
        limit_bytes: most bytes of files held; a hint beyond is let go.
    """

    def __init__(self, is_hinted: Callable[[bytes], bool], limit_bytes: int) -> None:
        self._is_hinted = is_hinted
        self._limit_bytes = limit_bytes
        self._items: dict[bytes, MediaItem] = {}

    def has_room(self, items: tuple[MediaItem, ...]) -> bool:
        """Whether the files of these may be held beside the others. Pure."""
        every = (*self._items.values(), *items)
        contents = [content for item in every for content in item.origin.contents]
        sizes = {id(content): len(content) for content in contents}
        return sum(sizes.values()) <= self._limit_bytes

    def add(self, items: tuple[MediaItem, ...]) -> None:
        """Hold those the scheduler has taken up. Changes: the items."""
        self._items.update((item.digest, item) for item in items)
        self.prune()

    def get(self, digest: bytes) -> MediaItem | None:
        """The item of a digest, if it is held. Pure."""
        return self._items.get(digest)

    def pop(self, digest: bytes) -> MediaItem | None:
        """The item of a digest, whose pixels have come. Changes: it is not held any more."""
        return self._items.pop(digest, None)

    def prune(self) -> None:
        """Let go of those that are not only hinted at any more. Changes: the items."""
        for digest in [digest for digest in self._items if not self._is_hinted(digest)]:
            del self._items[digest]
