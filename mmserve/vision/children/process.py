"""One child process, seen from its parent: given a job, listened to under limits, ended."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmserve.core import Broken, MediaRefused, child_environment
from mmserve.vision.children.line import Line, Message
from mmserve.vision.refusal import refused

__all__ = ["Child", "Limits", "can_start", "nonsense"]

_LOG = logging.getLogger("mmserve.vision.children")
_PROGRAM = Path(__file__).with_name("child.py")
_START_S = 60.0
_END_S = 2.0
_KEPT_BYTES = 16 << 20
_LONGEST_LINE = 500
_MOST_THREADS = 4  # of any decoder
_FIRST_FREE = 3  # descriptors below are the standard streams of a child


def can_start() -> bool:
    """Whether children can be started here. Pure.

    Not from an archive: its program is no file, or the interpreter is the application itself.
    """
    is_python = bool(sys.executable) and not getattr(sys, "frozen", False)
    return os.name == "posix" and is_python and _PROGRAM.is_file()


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may take.

    Args:
        memory_bytes: address space beyond what the child has when the job begins.
        quiet_s: longest wait for a word of it, in seconds.
        total_s: longest time in it altogether, in seconds, waits of the parent not counted.
    """

    memory_bytes: int
    quiet_s: float
    total_s: float


class Child:
    """A process that decodes. Used by one thread at a time; `wake` by any.

    It is started at once and awaited at its first job. After an error other than MediaRefused
    from the file itself `is_sound` is False: it is to be ended, not used again.
    """

    def __init__(self) -> None:
        try:
            with ExitStack() as opened:
                self._content, self._pixels = _nameless(opened), _nameless(opened)
                ours, theirs = _connected(opened)
                self._heard, self._bell = _connected(opened)
                self._process = _started(theirs, self._content, self._pixels)
                theirs.close()
                self._opened = opened.pop_all()
        except OSError as error:
            raise _not_started() from error
        self._line = Line(ours)
        self._heard.settimeout(0)
        self._bell.settimeout(0)
        self._limits = Limits(0, _START_S, _START_S)
        self._spent_s = 0.0
        self._is_ready = False
        self.num_jobs = 0
        self.is_sound = True

    @property
    def process_id(self) -> int:
        """The process's number."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether it can take a job. Pure."""
        return self.is_sound and self._process.poll() is None

    def give(self, job: str, content: bytes, limits: Limits, values: Mapping[str, Any]) -> None:
        """Give it a job. Raises as `listen`. Changes: the content file."""
        if not self._is_ready:
            self._await_start()
        self.num_jobs += 1
        self._limits, self._spent_s = limits, 0.0
        _write(self._content, content)
        cpu_s = ceil(limits.total_s + 1) * min(os.cpu_count() or 1, _MOST_THREADS)
        message = {"job": job, "num_bytes": len(content), "cpu_s": cpu_s, **values}
        self.tell({**message, "memory_bytes": limits.memory_bytes + 2 * len(content)})

    def tell(self, message: Message) -> None:
        """Send a word about the running job. Raises as `listen`."""
        try:
            self._line.send(message, self._limits.quiet_s)
        except TimeoutError:
            raise self._too_slow(self._limits.quiet_s) from None
        except OSError:
            raise self._died() from None

    def listen(self, *, can_wake: bool = False) -> Message:
        """Its next word about the running job; an empty one if `wake` was called, when it may.

        Raises:
            MediaRefused: the file is bad, or the job went over a limit, or the child died.
            Broken: the child failed in a way that is our fault.
        """
        while True:
            message = self._word(can_wake=can_wake)
            if message is None:
                with contextlib.suppress(BlockingIOError):
                    self._heard.recv(4096)
                return {}
            if "log" in message:
                _LOG.warning("%s", str(message["log"])[:_LONGEST_LINE])
            elif "at" not in message:
                try:
                    self._check(message)
                except (LookupError, TypeError, ValueError):
                    raise nonsense(self) from None
                return message

    def wake(self) -> None:
        """Make `listen` return. Safe from any thread; never waits."""
        with contextlib.suppress(BlockingIOError, OSError):
            self._bell.send(b"!")

    def pixels(self, shape: tuple[int, ...], offset: int = 0) -> NDArray[np.uint8]:
        """What the child has put into the pixels file: uint8 `shape`, a copy of our own."""
        num_bytes = prod(shape)
        if os.fstat(self._pixels).st_size < offset + num_bytes:
            raise nonsense(self)
        array = np.empty(shape, np.uint8)
        view = array.data.cast("B")
        done = 0
        while done < num_bytes:
            num_read = os.preadv(self._pixels, [view[done:]], offset + done)
            if not num_read:
                raise nonsense(self)
            done += num_read
        return array

    def rest(self) -> None:
        """The job is over. Changes: large files shrink."""
        for file in (self._content, self._pixels):
            if os.fstat(file).st_size > _KEPT_BYTES:
                os.truncate(file, 0)

    def end(self) -> None:
        """End the process, whatever it is doing, and free what belongs to it. Idempotent.

        One that stands in the kernel ends when it comes out of it; a thread of its own waits.
        """
        self.is_sound = False
        self._opened.close()
        self._process.kill()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            threading.Thread(target=self._process.wait, daemon=True).start()

    def leave(self) -> None:
        """Free what belongs to it in a process that has inherited it by a fork."""
        self.is_sound = False
        self._opened.close()
        self._process.returncode = 0  # as far as this process knows; it is another's child

    def _await_start(self) -> None:
        try:
            message = self._line.receive(_START_S)
        except (EOFError, TimeoutError, ValueError):
            message = None
        if not message or "is_ready" not in message:
            self.is_sound = False
            raise _not_started()
        self._is_ready = True

    def _word(self, *, can_wake: bool) -> Message | None:
        limits = self._limits
        left_s = limits.total_s - self._spent_s
        started = monotonic()
        try:
            wake = self._heard.fileno() if can_wake else None
            return self._line.receive(max(0.0, min(limits.quiet_s, left_s)), wake)
        except TimeoutError:
            limit_s = limits.total_s if left_s < limits.quiet_s else limits.quiet_s
            raise self._too_slow(limit_s) from None
        except EOFError:
            raise self._died() from None
        except ValueError:
            raise nonsense(self) from None
        finally:
            self._spent_s += monotonic() - started

    def _check(self, message: Message) -> None:
        """Raise what an answer tells of."""
        if "refused" in message:
            fields = dict(message["fields"])
            raise MediaRefused(str(message["refused"]), hint=message["hint"], **fields)
        if "lacked" in message:
            self.is_sound = False
            limit = self._limits.memory_bytes
            words = f"cannot be decoded within {limit} bytes of memory, the limit"
            raise refused("undecodable", words, limit_bytes=limit)
        if "failed" in message:
            self.is_sound = False
            _LOG.error("a decoder process failed:\n%s", message["failed"])
            raise Broken("could not be decoded: an internal error")

    def _too_slow(self, limit_s: float) -> MediaRefused:
        self.is_sound = False
        message = f"cannot be decoded within {limit_s:g} s, the limit"
        return refused("undecodable", message, limit_s=limit_s)

    def _died(self) -> MediaRefused:
        self.is_sound = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        code = self._process.returncode
        how = next((one.name for one in signal.Signals if one == -(code or 0)), f"code {code}")
        _LOG.warning("a decoder process ended while it decoded (%s)", how)
        message = f"cannot be decoded: the decoder crashed on it ({how})"
        before = self.num_jobs - 1
        return refused("undecodable", message, crash=how, num_jobs_before=before)


def nonsense(child: Child) -> MediaRefused:
    """The refusal of a file over which a child lost its mind. Changes: the child is unsound."""
    child.is_sound = False
    return refused("undecodable", "cannot be decoded: the decoder gave something else")


def _not_started() -> Broken:
    hint = "isolation='thread' decodes in this process, without its protection"
    return Broken("cannot be decoded: a decoder process did not start", hint=hint)


def _started(end: socket.socket, content: int, pixels: int) -> subprocess.Popen[bytes]:
    descriptors = (end.fileno(), content, pixels)
    paths = json.dumps([path for path in sys.path if path and isinstance(path, str)])
    with _blocked(signal.SIGINT, signal.SIGTERM):
        return subprocess.Popen(
            [sys.executable, "-P", str(_PROGRAM), *map(str, descriptors), paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=child_environment(),
            pass_fds=descriptors,
        )


@contextlib.contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Processes started meanwhile never get `signals`, which are for their parent to act on.

    A terminal or a service manager sends them to all processes of a server at once.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _connected(opened: ExitStack) -> tuple[socket.socket, socket.socket]:
    """Both ends of a socket, out of the way of the standard streams, which may be closed."""
    with ExitStack() as low:
        ends = [low.enter_context(end) for end in socket.socketpair()]
        first, second = (
            opened.enter_context(socket.socket(fileno=_raised(end.fileno()))) for end in ends
        )
    return first, second


def _nameless(opened: ExitStack) -> int:
    """Descriptor of an empty file in memory, or on disk where memory has none."""
    with ExitStack() as low:
        try:
            file = os.memfd_create("mmserve")
            low.callback(os.close, file)
        except (AttributeError, OSError):
            file = low.enter_context(tempfile.TemporaryFile()).fileno()
        raised = _raised(file)
    opened.callback(os.close, raised)
    return raised


def _raised(descriptor: int) -> int:
    """A copy that is no standard stream's, which children do not inherit unless named."""
    copy = os.dup(descriptor)
    if copy >= _FIRST_FREE:
        return copy
    try:
        return _raised(descriptor)
    finally:
        os.close(copy)


def _write(file: int, content: bytes) -> None:
    view = memoryview(content)
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done:], done)
