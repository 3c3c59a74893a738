"""Grammars are compiled in threads of their own; who needs one waits without a thread.

    request -> known?      its maker, at once             (the compiler's cache)
               refused?    the same refusal, at once      (the latest are remembered)
               under way?  one more waiter of that job
               else        a job in the queue -> a worker -> maker or refusal to all its waiters

A waiter is a future. Whoever takes it out of the pool's book, under the lock, gives it its end:
a worker with a result, the clock, or `close`. Its owner may cancel it at any time before.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic, perf_counter
from typing import Literal, Protocol

from mmserve.constrained.kept import KeptGrammar
from mmserve.constrained.refusals import (
    RecentRefusals,
    closed,
    copy_of,
    never_begun,
    overdue,
    queue_full,
    text_bytes,
    too_large,
)
from mmserve.core import (
    Broken,
    Constraint,
    ConstraintRefused,
    Matcher,
    MmserveError,
)

__all__ = ["CompileCounts", "CompilePool", "Compiler", "NewMatcher"]

_log = logging.getLogger(__name__)

NewMatcher = Callable[[], Matcher]
"""Makes a fresh matcher for one answer."""

_Reason = Literal["invalid", "too_large", "timeout", "busy", "broken"]


class Compiler(Protocol):
    """What the pool asks of a compiler; safe to use from any thread."""

    def compile(self, constraint: Constraint) -> NewMatcher:
        """The grammar, however long it takes. Raises ConstraintRefused."""
        ...

    def cached(self, constraint: Constraint) -> NewMatcher | None:
        """The grammar if it is known; does no work."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes of compiled grammars kept."""
        ...

    @property
    def num_entries(self) -> int:
        """Compiled grammars kept."""
        ...

    def kept(self) -> tuple[KeptGrammar, ...]:
        """The compiled grammars kept, the one used last first."""
        ...


@dataclass(frozen=True, slots=True)
class CompileCounts:
    """What the pool has done since it was made, and what it holds now.

    Args:
        num_compiled: grammars compiled.
        num_hits: requests that found their grammar compiled, or under way for another.
        refused: requests refused, by reason.
        compile_ms: milliseconds spent in workers, for what was refused too.
        num_waiting: requests that wait now.
        num_kept: compiled grammars kept now.
        kept_bytes: their bytes.
    """

    num_compiled: int
    num_hits: int
    refused: dict[_Reason, int]
    compile_ms: float
    num_waiting: int
    num_kept: int
    kept_bytes: int


@dataclass(slots=True, eq=False)
class _Job:
    """One grammar that somebody waits for, or did when a worker took it up."""

    constraint: Constraint
    waiters: set[Future[NewMatcher]] = field(default_factory=set)
    is_begun: bool = False


class CompilePool:
    """Compiles grammars in `num_workers` threads, each once for all who ask at a time.

    Safe to use from any thread. Owns its threads until `close`.

    Args:
        compiler: does the work and keeps what is done.
        num_workers: most grammars compiled at once.
        timeout_s: longest that a request waits. The work goes on, and its result is kept.
        max_waiting: most grammars in the queue before the workers.
        max_bytes: most bytes of one grammar's text, in UTF-8.
    """

    def __init__(
        self,
        compiler: Compiler,
        *,
        num_workers: int,
        timeout_s: float,
        max_waiting: int,
        max_bytes: int,
    ) -> None:
        self._compiler = compiler
        self._num_workers = num_workers
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._alarm = threading.Condition(self._lock)
        self._jobs: dict[Constraint, _Job] = {}
        self._queue: OrderedDict[Constraint, _Job] = OrderedDict()
        """Those of `_jobs` that no worker has begun."""
        self._waiters: OrderedDict[Future[NewMatcher], tuple[float, _Job]] = OrderedDict()
        """When each must have its grammar: in order, since all may wait for as long."""
        self._refusals = RecentRefusals()
        self._counts: Counter[str] = Counter()
        self._refused: Counter[_Reason] = Counter(
            {"invalid": 0, "too_large": 0, "timeout": 0, "busy": 0, "broken": 0}
        )
        self._compile_ms = 0.0
        self._num_active = 0
        """Workers that run, or are about to."""
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix="mmserve-grammar")
        self._clock: threading.Thread | None = None
        """Runs while somebody waits, and till the next deadline after that."""
        self._is_closed = False

    # --- from any thread ---------------------------------------------------------------------

    def request(self, constraint: Constraint) -> Future[NewMatcher]:
        """Ask for a grammar; returns at once. Changes: the queue.

        The future is done already for a grammar that is known or refused at once. It fails with

        - ConstraintRefused: `reason` is the compiler's, "too_large" or "timeout";
        - Busy: too many grammars wait, or no worker came to this one in time;
        - Aborted: the pool was closed.

        Cancelling it leaves nothing behind, but work that has begun is finished. Its callbacks
        run in a thread of the pool, or of who cancels, and must be short.
        """
        waiter: Future[NewMatcher] = Future()
        try:
            known = self._enter(constraint, waiter)
        except MmserveError as error:
            _settle(waiter, error)
        else:
            if known is not None:
                _settle(waiter, known)
            else:
                waiter.add_done_callback(self._forget)
        return waiter

    def counts(self) -> CompileCounts:
        """Counters and gauges at one moment. Pure."""
        with self._lock:
            return CompileCounts(
                num_compiled=self._counts["compiled"],
                num_hits=self._counts["hits"],
                refused=dict(self._refused),
                compile_ms=self._compile_ms,
                num_waiting=len(self._waiters),
                num_kept=self._compiler.num_entries,
                kept_bytes=self._compiler.used_bytes,
            )

    def kept(self) -> tuple[KeptGrammar, ...]:
        """The compiled grammars kept, the one used last first. Pure."""
        return self._compiler.kept()

    def close(self) -> None:
        """Refuse all that wait; grammars that were begun end by themselves. Idempotent."""
        with self._lock:
            self._is_closed = True
            waiters = list(self._waiters)
            for waiter in waiters:
                self._take(waiter)
            is_busy, clock = bool(self._jobs), self._clock
            self._alarm.notify()
        for waiter in waiters:
            _settle(waiter, closed())
        self._workers.shutdown(wait=not is_busy)
        if clock is not None:
            clock.join()

    # --- coming and going --------------------------------------------------------------------

    def _enter(self, constraint: Constraint, waiter: Future[NewMatcher]) -> NewMatcher | None:
        """The grammar, if it is known; else the waiter is in the book and its job under way."""
        num_bytes = text_bytes(constraint, self._max_bytes)
        with self._lock:
            if self._is_closed:
                raise closed()
            if num_bytes > self._max_bytes:
                self._refused["too_large"] += 1
                raise too_large(constraint, num_bytes, self._max_bytes)
            known = self._compiler.cached(constraint)
            if known is not None:
                self._counts["hits"] += 1
                return known
            refusal = self._refusals.get(constraint)
            if refusal is not None:
                self._refused["invalid"] += 1
                raise refusal
            job = self._jobs.get(constraint)
            if job is None:
                job = self._new_job(constraint)
            else:
                self._counts["hits"] += 1
            job.waiters.add(waiter)
            self._waiters[waiter] = (monotonic() + self._timeout_s, job)
            self._start_clock()
        return None

    def _new_job(self, constraint: Constraint) -> _Job:
        """A job in the queue, and a worker to come for it. Call with the lock held."""
        if len(self._queue) >= self._max_waiting:
            self._refused["busy"] += 1
            raise queue_full(self._max_waiting)
        if self._num_active < self._num_workers:
            self._num_active += 1
            self._workers.submit(self._work)
        job = self._jobs[constraint] = self._queue[constraint] = _Job(constraint)
        return job

    def _take(self, waiter: Future[NewMatcher]) -> bool:
        """Whether the waiter was still in the book. Call with the lock held."""
        entry = self._waiters.pop(waiter, None)
        if entry is None:
            return False
        _, job = entry
        job.waiters.remove(waiter)
        if not job.waiters and not job.is_begun:  # nobody wants it any more
            del self._queue[job.constraint], self._jobs[job.constraint]
        return True

    def _forget(self, waiter: Future[NewMatcher]) -> None:
        """A future is done: if it is still in the book, because it was cancelled."""
        with self._lock:
            is_cancelled = self._take(waiter)
        if is_cancelled:
            waiter.set_running_or_notify_cancel()

    # --- workers -----------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._do(job)
            del job  # the next one may take long, and this one's waiters are free

    def _do(self, job: _Job) -> None:
        started = perf_counter()
        outcome = self._compiled(job.constraint)
        waiters = self._finish(job, outcome, (perf_counter() - started) * 1000)
        for waiter in waiters:
            _settle(waiter, outcome)

    def _next(self) -> _Job | None:
        """The oldest job in the queue; without one, the worker counts as gone."""
        with self._lock:
            if not self._queue:
                self._num_active -= 1
                return None
            _, job = self._queue.popitem(last=False)
            job.is_begun = True
            return job

    def _compiled(self, constraint: Constraint) -> NewMatcher | MmserveError:
        try:
            return self._compiler.compile(constraint)
        except MmserveError as error:
            return error
        except BaseException as error:  # noqa: BLE001  (a panic in Rust is no Exception)
            _log.error("a %s could not be compiled", constraint.kind, exc_info=error)
            return Broken("the grammar could not be compiled", hint="see the log")

    def _finish(
        self, job: _Job, outcome: NewMatcher | MmserveError, spent_ms: float
    ) -> Iterable[Future[NewMatcher]]:
        """Close a job's books; who waited for it to the end."""
        with self._lock:
            del self._jobs[job.constraint]
            waiters = [waiter for waiter in tuple(job.waiters) if self._take(waiter)]
            self._compile_ms += spent_ms
            if isinstance(outcome, ConstraintRefused):
                self._refused["invalid"] += len(waiters)
                self._refusals.add(job.constraint, outcome)
            elif isinstance(outcome, MmserveError):
                self._refused["broken"] += len(waiters)
            else:
                self._counts["compiled"] += 1
        return waiters

    # --- the clock ---------------------------------------------------------------------------

    def _start_clock(self) -> None:
        """See that a clock runs. Call with the lock held."""
        if self._clock is None:  # a clock that runs already wakes in time: deadlines only grow
            self._clock = threading.Thread(
                target=self._keep_time, name="mmserve-grammar-clock", daemon=True
            )
            self._clock.start()

    def _keep_time(self) -> None:
        while True:
            with self._lock:
                if not self._waiters:
                    self._clock = None
                    return
                deadline, _ = next(iter(self._waiters.values()))
                if (rest := deadline - monotonic()) > 0:
                    self._alarm.wait(rest)
                late = self._take_late(monotonic())
            for waiter, error in late:
                _settle(waiter, error)

    def _take_late(self, now: float) -> list[tuple[Future[NewMatcher], MmserveError]]:
        """Take those whose time is up out of the book. Call with the lock held."""
        late: list[tuple[Future[NewMatcher], MmserveError]] = []
        while self._waiters:
            waiter, (deadline, job) = next(iter(self._waiters.items()))
            if deadline > now:
                break
            if job.is_begun:
                self._refused["timeout"] += 1
                late.append((waiter, overdue(job.constraint, self._timeout_s)))
            else:  # not its own fault, but that of those before it
                self._refused["busy"] += 1
                late.append((waiter, never_begun(self._timeout_s)))
            self._take(waiter)
        return late


def _settle(waiter: Future[NewMatcher], outcome: NewMatcher | MmserveError) -> None:
    """Give a waiter that is out of the book its end, unless it was cancelled a moment ago."""
    if not waiter.set_running_or_notify_cancel():
        return
    if isinstance(outcome, MmserveError):
        waiter.set_exception(copy_of(outcome))
    else:
        waiter.set_result(outcome)
