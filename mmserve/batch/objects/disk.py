"""Objects on disk: each fetched once, kept while it is used, and a while longer.

hold(addresses) --waits until there is room--> files, each fetched once for all who hold it
release(addresses) --> unused: the least recently used leave first, when room is needed

bytes and files of used + unused <= limits, but one holder always gets what it needs;
a size is known when the object is there, so a holder may go over by its own objects
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from mmserve.batch.objects.permits import ObjectAddress
from mmserve.core import Aborted, BackendFailed

__all__ = ["DiskLimits", "Fetch", "ObjectDisk"]

Fetch = Callable[[ObjectAddress, Path, Callable[[], bool]], int]
"""Writes an object to a new file and gives its bytes; stops soon once the last says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimits:
    """How much may lie on disk, and how long one object may take."""

    max_files: int
    max_bytes: int
    num_fetches: int
    timeout_s: float


@dataclass(slots=True, eq=False)
class _Object:
    """A file that is there or on its way."""

    path: Path
    num_users: int = 0
    num_bytes: int = 0
    fetched: Future[int] = field(default_factory=Future)

    @property
    def is_used(self) -> bool:
        """Whether somebody holds it, or it is on its way. Pure."""
        return self.num_users > 0 or not self.fetched.done()

    @property
    def has_failed(self) -> bool:
        """Whether it will not come. Pure."""
        return self.fetched.done() and self.fetched.exception() is not None


class ObjectDisk:
    """The folder of one run. Safe from any thread; close it.

    Args:
        fetch: see there; called in threads of its own.
        limits: see there.
    """

    def __init__(self, fetch: Fetch, limits: DiskLimits) -> None:
        self._fetch = fetch
        self._limits = limits
        self._folder = Path(tempfile.mkdtemp(prefix="mmserve-objects-"))
        self._changed = threading.Condition()
        self._turns = threading.BoundedSemaphore(limits.num_fetches)
        self._objects: OrderedDict[ObjectAddress, _Object] = OrderedDict()  # oldest use first
        self._num_made = 0
        self._is_closed = False

    def hold(self, addresses: Sequence[ObjectAddress]) -> dict[ObjectAddress, Path]:
        """The files of these objects, until `release` of the same. Blocks until they are there.

        Changes: unused files may leave. Raises what the fetch raises, and Aborted if the disk
        is closed meanwhile; then nothing is held.
        """
        wanted = tuple(dict.fromkeys(addresses))
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._has_room(wanted))
            self._check_open()
            held = {address: self._take(address) for address in wanted}
        try:
            for kept in held.values():
                kept.fetched.result()
        except BaseException:
            self._give_back(held)
            raise
        return {address: kept.path for address, kept in held.items()}

    def want(self, address: ObjectAddress, then: Callable[[Path], None]) -> None:
        """Begin to fetch an object that will be held soon, if there is room. Returns at once.

        `then` gets the file once it is there, and must not raise. A hint: a failure is told to
        nobody, and who holds the object then tries again.
        """
        with self._changed:
            if self._is_closed or address in self._objects or not self._has_room((address,)):
                return
            kept = self._take(address)
            kept.num_users -= 1

        def tell(fetched: Future[int]) -> None:
            if fetched.exception() is None:
                then(kept.path)

        kept.fetched.add_done_callback(tell)

    def release(self, addresses: Sequence[ObjectAddress]) -> None:
        """End of a `hold`. Changes: files that are too many leave."""
        with self._changed:
            held = {a: self._objects[a] for a in dict.fromkeys(addresses) if a in self._objects}
        self._give_back(held)

    def close(self) -> None:
        """Remove everything. Idempotent. Changes: who waits in `hold` gets Aborted."""
        with self._changed:
            self._is_closed = True
            for kept in self._objects.values():
                _fail(kept.fetched, Aborted("the run has ended"))
            self._objects.clear()
            self._changed.notify_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- room; called with the lock ----------------------------------------------------------

    def _has_room(self, wanted: Sequence[ObjectAddress]) -> bool:
        """Whether the objects may be taken now. Changes: unused files leave for them."""
        new = sum(address not in self._objects for address in wanted)
        used = [kept for kept in self._objects.values() if kept.is_used]
        if used and new:
            is_full = sum(kept.num_bytes for kept in used) >= self._limits.max_bytes
            if is_full or len(used) + new > self._limits.max_files:
                return False
        self._make_room(new, keep=wanted)
        return True

    def _make_room(self, num_new: int, keep: Sequence[ObjectAddress] = ()) -> None:
        """Let unused files go until the limits hold, as far as that helps."""
        num_files = len(self._objects) + num_new
        num_bytes = sum(kept.num_bytes for kept in self._objects.values())
        for address, kept in list(self._objects.items()):
            if num_files <= self._limits.max_files and num_bytes <= self._limits.max_bytes:
                return
            if kept.is_used or address in keep:
                continue
            del self._objects[address]
            kept.path.unlink(missing_ok=True)
            num_files -= 1
            num_bytes -= kept.num_bytes

    def _take(self, address: ObjectAddress) -> _Object:
        kept = self._objects.get(address)
        if kept is None or (not kept.num_users and kept.has_failed):
            kept = self._objects[address] = _Object(self._new_path(address))
            threading.Thread(
                target=self._bring, args=(address, kept), name="mmserve-object", daemon=True
            ).start()
        kept.num_users += 1
        self._objects.move_to_end(address)
        return kept

    def _new_path(self, address: ObjectAddress) -> Path:
        """A name that no other fetch has, with the object's suffix, which tells its type."""
        self._num_made += 1
        digest = hashlib.blake2b(str(address).encode(errors="replace"), digest_size=8)
        suffix = Path(address.names[-1]).suffix[:16] if address.names else ""
        return self._folder / f"{digest.hexdigest()}-{self._num_made}{suffix}"

    def _check_open(self) -> None:
        if self._is_closed:
            raise Aborted("the run has ended")

    # --- fetching; each in its own thread ----------------------------------------------------

    def _give_back(self, held: dict[ObjectAddress, _Object]) -> None:
        with self._changed:
            for address, kept in held.items():
                kept.num_users -= 1
                if kept.has_failed and self._objects.get(address) is kept:
                    del self._objects[address]  # whoever asks next tries again
            self._make_room(0)
            self._changed.notify_all()

    def _bring(self, address: ObjectAddress, kept: _Object) -> None:
        """Fetch, in turn; when the time is over those who wait are told, and the turn ends."""
        self._turns.acquire()
        turn = _Once(self._turns.release)
        limit = threading.Timer(
            self._limits.timeout_s, lambda: self._give_up(address, kept, turn)
        )
        limit.daemon = True
        limit.start()
        try:
            num_bytes = self._fetch(address, kept.path, kept.fetched.done)
            self._landed(kept, num_bytes)
        except BaseException as error:  # noqa: BLE001 - told to all who wait
            _fail(kept.fetched, error)
        finally:
            limit.cancel()
            turn()
            if kept.has_failed:
                kept.path.unlink(missing_ok=True)
            with self._changed:
                self._changed.notify_all()

    def _landed(self, kept: _Object, num_bytes: int) -> None:
        with self._changed:
            kept.num_bytes = num_bytes
            with contextlib.suppress(Exception):  # it was given up meanwhile
                kept.fetched.set_result(num_bytes)
            self._make_room(0)

    def _give_up(self, address: ObjectAddress, kept: _Object, turn: Callable[[], None]) -> None:
        message = f"{address} was not there within {self._limits.timeout_s:g} s"
        hint = "--store-timeout-s gives it longer"
        _fail(kept.fetched, BackendFailed(message, hint=hint, status=None))
        turn()
        with self._changed:
            self._changed.notify_all()


class _Once:
    """Calls something at most once, from whatever thread comes first."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._lock = threading.Lock()
        self._is_done = False

    def __call__(self) -> None:
        with self._lock:
            is_first, self._is_done = not self._is_done, True
        if is_first:
            self._act()


def _fail(future: Future[int], error: BaseException) -> None:
    """Set the error, unless the future has its end."""
    with contextlib.suppress(Exception):
        future.set_exception(error)
