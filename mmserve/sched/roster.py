"""Every live sequence, in exactly one of two places, and the one way out.

    enter -> [line] <-> [running] -> end          `live` holds both

While a step with a sequence is out, its slots stay its own even after it has ended: the step
writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmserve.core import Finish, Jump, LedgerBroken, MediaSpan
from mmserve.sched.books.books import Books
from mmserve.sched.ledgers import Ledgers
from mmserve.sched.order.line import WaitingLine
from mmserve.sched.sequence import Sequence
from mmserve.sched.updates import (
    NO_GROWTH,
    Growth,
    SchedCounts,
    SequenceUpdate,
    Totals,
    update_of,
)

__all__ = ["Roster"]


class Roster:
    """Who waits, who runs, and what they hold."""

    def __init__(
        self,
        ledgers: Ledgers,
        line: WaitingLine,
        books: Books,
        clock: Callable[[], float],
    ) -> None:
        self.memory = ledgers.memory
        self.desk = ledgers.desk
        self.line = line
        self.books = books
        self._ledgers = ledgers
        self.live: dict[int, Sequence] = {}
        self.running: dict[int, Sequence] = {}
        self.in_flight: tuple[Sequence, ...] = ()
        """Sequences of the step that is out, ended ones included."""
        self.jump_forward = ledgers.config.jump_forward
        self.totals = Totals()
        self._clock = clock

    def enter(self, sequence: Sequence) -> None:
        """A newcomer waits. Changes: the line; pixels may be wanted."""
        self.live[sequence.sequence_id] = sequence
        self.line.add(sequence)
        self.desk.register(sequence)
        self.ask_ahead(sequence)

    def start(self, sequence: Sequence) -> None:
        """A waiting sequence has a row and runs. Changes: the line, who runs."""
        self.line.admit(sequence)
        self.running[sequence.sequence_id] = sequence
        if sequence.admitted_s is None:
            sequence.admitted_s = self._clock()
            wait_s = sequence.admitted_s - sequence.arrived_s
            self.books.note_start(sequence, wait_s * 1e3)
        self.ask_ahead(sequence)

    def retract(self, sequence: Sequence) -> None:
        """A running sequence waits again; its KV stays findable until the slots are needed.

        Changes: slots, pins, the line.
        """
        self.memory.release(sequence)
        self.desk.unpin_all(sequence)
        sequence.num_retractions += 1
        self.totals.retractions += 1
        del self.running[sequence.sequence_id]
        self.line.put_back(sequence)

    def end(
        self,
        sequence: Sequence,
        finish: Finish,
        growth: Growth = NO_GROWTH,
    ) -> SequenceUpdate:
        """A sequence's last news. Changes: it lets go of everything, slots in flight apart."""
        sequence.is_ended = True
        del self.live[sequence.sequence_id]
        if self.running.pop(sequence.sequence_id, None) is None:
            self.line.remove(sequence)
        else:
            self.line.take_down(sequence)
        self._ledgers.fairness.leave(sequence.spec.client)
        self.desk.leave(sequence)
        if all(other is not sequence for other in self.in_flight):
            self.memory.release(sequence)
        self.totals.cached_tokens += sequence.num_cached
        self.totals.finished[finish.reason] += 1
        if finish.reason in ("stop", "length"):
            self._ledgers.forecast.note(sequence.num_output, is_cut=finish.reason == "length")
        self.books.note_end(sequence)
        return self.news(sequence, growth, finish)

    def end_landed(self, sequence: Sequence, finish: Finish) -> SequenceUpdate | None:
        """End a sequence of the step that is back; None if it had ended meanwhile.

        Changes: as `end`.
        """
        if sequence.is_ended:
            self.memory.release(sequence)
            return None
        return self.end(sequence, finish)

    def news(
        self,
        sequence: Sequence,
        growth: Growth = NO_GROWTH,
        finish: Finish | None = None,
    ) -> SequenceUpdate:
        """An update of a sequence as it stands now. Pure."""
        return update_of(sequence, self._clock(), growth, finish)

    def note_jump(self, sequence: Sequence, jump: Jump) -> None:
        """A jump was taken. Changes: totals, service."""
        num_tokens = len(jump.token_ids)
        self.totals.jumps += 1
        self.totals.replaced_tokens += jump.num_replaced
        self.totals.forced_tokens += max(0, num_tokens - jump.num_replaced)
        self._ledgers.fairness.charge(sequence.spec.client, num_tokens)

    def lacks(self, sequence: Sequence, digest: bytes) -> bool:
        """Whether tokens of a picture still need its features. Pure."""
        return any(span.digest == digest for span in self._uncovered(sequence))

    def awaits_pixels(self, sequence: Sequence) -> bool:
        """Whether pixels for tokens of it have been asked for and have not come. Pure."""
        return any(self.desk.is_awaited(span.digest) for span in self._uncovered(sequence))

    def ask_ahead(self, sequence: Sequence) -> None:
        """Want the pixels a sequence will need. Changes: what is wanted."""
        if sequence.spec.prompt.spans:
            self.desk.ask_ahead(self._uncovered(sequence), sequence.spec.client)

    def _uncovered(self, sequence: Sequence) -> Iterator[MediaSpan]:
        """Spans with tokens that have no KV, and get none from the step that is out."""
        num_covered = len(sequence.slots) or self.memory.num_cached(sequence)
        return (span for span in sequence.spec.prompt.spans if span.end > num_covered)

    def counts(self) -> SchedCounts:
        """Ledgers and totals as they stand. Pure. Another thread may ask, amid a change."""
        totals, pool = self.totals, self.memory.pool
        num_free = pool.num_free
        num_cached = min(self.memory.tree.num_evictable, pool.num_slots - num_free)
        return SchedCounts(
            slots_total=pool.num_slots,
            slots_free=num_free,
            slots_cached=num_cached,
            slots_held=pool.num_slots - num_free - num_cached,
            feature_tokens=self.desk.ledger.num_tokens,
            running=len(self.running),
            waiting=len(self.line),
            steps=totals.steps,
            tokens_computed=totals.tokens_computed,
            prompt_tokens_computed=totals.prompt_tokens_computed,
            cached_tokens=totals.cached_tokens,
            generated_tokens=totals.generated_tokens,
            forced_tokens=totals.forced_tokens,
            replaced_tokens=totals.replaced_tokens,
            jumps=totals.jumps,
            encoded_items=totals.encoded_items,
            early_items=self.desk.num_early,
            early_items_used=self.desk.num_early_used,
            retractions=totals.retractions,
            finished=dict(totals.finished),
        )

    def verify(self) -> None:
        """Raise LedgerBroken unless all ledgers add up. Pure. Cost: O(slots + nodes)."""
        holders = {id(seq): seq for seq in (*self.running.values(), *self.in_flight)}
        self.memory.verify(holders.values())
        self.desk.verify(self.live.values())
        waiting = {sequence.sequence_id for sequence in self.line}
        if waiting & self.running.keys() or waiting | self.running.keys() != self.live.keys():
            raise LedgerBroken("a sequence neither runs nor waits, or does both")
        self.line.verify()
