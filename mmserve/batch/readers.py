"""Threads that wait for answers, and one queue in which they come as they end."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass

from mmserve.batch.asker import AskTicket
from mmserve.batch.records import Answer
from mmserve.core import Aborted, Broken, MmserveError, Output

__all__ = ["Ended", "Readers", "read_answers"]

Fate = Answer | MmserveError


@dataclass(frozen=True, slots=True)
class Ended:
    """A request that is over.

    Args:
        number: which it is.
        fates: what became of each of its sequences; only one if all were refused together.
        crash: what no ticket should raise.
    """

    number: int
    fates: tuple[Fate, ...]
    crash: BaseException | None = None


class Readers:
    """Reads tickets; `add` and `next` belong to one thread.

    Args:
        most: tickets read at once; others wait.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._num_threads = 0
        self._num_unread = 0
        self._waiting: queue.SimpleQueue[tuple[int, AskTicket, int] | None] = (
            queue.SimpleQueue()
        )
        self._ended: queue.SimpleQueue[Ended] = queue.SimpleQueue()

    def add(self, number: int, ticket: AskTicket, num_sequences: int) -> None:
        """Have a ticket read; `next` gives it once it is over."""
        self._num_unread += 1
        self._waiting.put((number, ticket, num_sequences))
        if self._num_threads < min(self._most, self._num_unread):
            # A thread that waits for a ticket without end must not hold up the end of a run.
            threading.Thread(target=self._read, name="mmserve-reader", daemon=True).start()
            self._num_threads += 1

    def next(self, timeout_s: float | None = None) -> Ended | None:
        """The next request that is over; None after so many seconds."""
        try:
            ended = self._ended.get(timeout=timeout_s)
        except queue.Empty:
            return None
        self._num_unread -= 1
        return ended

    def close(self) -> None:
        """Let the threads go, each behind what it reads. Once."""
        for _ in range(self._num_threads):
            self._waiting.put(None)

    def _read(self) -> None:
        while (job := self._waiting.get()) is not None:
            number, ticket, num_sequences = job
            try:
                ended = Ended(number, read_answers(ticket, num_sequences))
            except MmserveError as error:
                ended = Ended(number, (error,))
            except BaseException as error:  # noqa: BLE001 - raised where the run is
                ended = Ended(number, (), error)
            self._ended.put(ended)


def read_answers(ticket: AskTicket, num_sequences: int) -> tuple[Fate, ...]:
    """Wait until all sequences have ended; what became of each. Raises a refusal of all."""
    pieces: dict[int, list[str]] = {n: [] for n in range(num_sequences)}
    lasts: dict[int, Output] = {}
    for output in ticket.outputs():
        pieces.setdefault(output.index, []).append(output.text)
        if output.finish is not None:
            lasts[output.index] = output
    return tuple(_fate(ticket, pieces[n], lasts.get(n)) for n in range(num_sequences))


def _fate(ticket: AskTicket, pieces: list[str], last: Output | None) -> Fate:
    if last is None or last.finish is None:
        return Broken("a request ended without an end")
    if last.finish.reason in ("error", "abort"):
        return last.finish.error or Aborted("the answer was stopped before its end")
    return Answer("".join(pieces), ticket.report(), last)
