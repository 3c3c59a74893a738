"""The scheduler: plans steps, takes their results in, and ends every sequence exactly once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from numpy.typing import NDArray

from mmserve.core import (
    BadRequest,
    Busy,
    Finish,
    ForwardPlan,
    LedgerBroken,
    MmserveError,
    NotFound,
    SampledTokens,
    SchedConfig,
)
from mmserve.radix import Interner, draw, outline
from mmserve.radix.icicle import draw_icicle
from mmserve.sched.admission import make_sequence
from mmserve.sched.books.books import Books
from mmserve.sched.books.report import SchedReport
from mmserve.sched.flight import Flight, record_of
from mmserve.sched.foresight import foreseen_plan
from mmserve.sched.jumping import open_answer
from mmserve.sched.ledgers import Ledgers
from mmserve.sched.masks import step_masks
from mmserve.sched.media import MediaDesk
from mmserve.sched.memory import KvMemory
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.line import WaitingLine
from mmserve.sched.order.rules import RULES
from mmserve.sched.pace.forecast import GrowthForecast
from mmserve.sched.results import take_failure, take_results
from mmserve.sched.roster import Roster
from mmserve.sched.sequence import Sequence, SequenceSpec
from mmserve.sched.show.chart import draw_steps
from mmserve.sched.show.gantt import draw_gantt
from mmserve.sched.show.lanes import Waiter
from mmserve.sched.show.memory import told_memory
from mmserve.sched.show.timeline import Timeline
from mmserve.sched.step import Beside, Outcome, StepBuilder
from mmserve.sched.tempo import Tempo
from mmserve.sched.updates import SchedCounts, SequenceUpdate
from mmserve.vision import draw_ledger

__all__ = ["Scheduler"]

_MAX_DRAWN = 32
"""Waiting sequences that a drawing may name."""
_MAX_REFUSED = 4
"""Candidates that may find no room before a step takes nobody else."""
_MAX_TRIES = 256
"""Candidates that one step looks at, so that its cost is bounded whoever waits."""


class Scheduler:
    """Decides every step; one plan may be out at a time.

    For one thread; another may only ask for `counts`, `service` and `report`.

    Args:
        config: budgets and policy.
        num_slots: tokens of KV the device holds.
        context_length: most tokens of prompt and answer together.
        vocab_size: token ids are in [0, vocab_size).
        clock: seconds, never falling.
    """

    def __init__(
        self,
        config: SchedConfig,
        *,
        num_slots: int,
        context_length: int,
        vocab_size: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._room_tokens = min(context_length, num_slots - num_slots % config.page_tokens)
        self._vocab_size = vocab_size
        self._clock = clock
        self._interner = Interner()
        if num_slots < config.page_tokens:
            message = f"{num_slots} slots hold no page of {config.page_tokens} tokens"
            raise BadRequest(
                message,
                field="page_tokens",
                reason="range",
                hint="more slots, or smaller pages",
            )
        self._memory = KvMemory(num_slots, config)
        self._desk = MediaDesk(config.feature_cache_tokens)
        self._fairness = Fairness(config)
        self._ledgers = Ledgers(
            config, self._memory, self._desk, self._fairness, GrowthForecast()
        )
        self._line = WaitingLine(config, self._memory, self._fairness)
        self._books = Books(config.page_tokens)
        self._roster = Roster(self._ledgers, self._line, self._books, clock)
        self._tempo = Tempo(config, clock)
        self._flight: Flight | None = None
        self._timeline = Timeline()
        self._retracted: list[int] = []
        self._num_arrivals = 0

    # Sequences come and go

    def add(self, spec: SequenceSpec) -> None:
        """Take a sequence in; from now on it ends in exactly one update with `finish`.

        Raises:
            BadRequest: the prompt is empty, or has a token outside the vocabulary; or there is
                a priority, and the policy knows none.
            ContextTooLong: prompt and one token of answer fit neither context nor pool.
            ConstraintRefused: the answer's grammar is too complex at its very start.
            Busy: too many wait already.

        Changes: the line; pixels may be wanted.
        """
        if spec.sequence_id in self._roster.live:
            raise LedgerBroken(f"sequence {spec.sequence_id} was added twice")
        self._check_priority(spec)
        num_waiting, limit = len(self._line), self._config.max_waiting
        if num_waiting >= limit:
            message = f"{num_waiting} sequences wait, the limit is {limit}"
            raise Busy(message, retry_after_s=1.0)
        sequence = make_sequence(
            spec,
            arrival=self._num_arrivals,
            now_s=self._clock(),
            room_tokens=self._room_tokens,
            vocab_size=self._vocab_size,
            interner=self._interner,
        )
        open_answer(sequence)
        self._num_arrivals += 1
        self._roster.enter(sequence)

    def abort(self, sequence_id: int) -> SequenceUpdate | None:
        """End a sequence whose caller left; None if it has ended. Changes: as `finish`."""
        sequence = self._roster.live.get(sequence_id)
        return None if sequence is None else self._roster.end(sequence, Finish("abort"))

    def finish(self, sequence_id: int, finish: Finish) -> SequenceUpdate:
        """End a sequence now, as when its text holds a stop text.

        Raises:
            NotFound: it has ended already.

        Changes: its slots and pins are let go, or, if a step with it is out, when that is back.
        """
        sequence = self._roster.live.get(sequence_id)
        if sequence is None:
            raise NotFound(f"no sequence {sequence_id}", what="sequence", name=sequence_id)
        return self._roster.end(sequence, finish)

    # Pixels

    def wanted(self) -> tuple[bytes, ...]:
        """Digests whose pixels are newly needed. Changes: each is named once while awaited."""
        return self._desk.take_wanted()

    def needers(self, digest: bytes) -> tuple[int, ...]:
        """Ids of live sequences that have this picture, in order. Pure."""
        return self._desk.needers(digest)

    def is_for_nobody(self, digest: bytes) -> bool:
        """Whether its pixels are awaited, and nobody needs them any more. Pure."""
        is_needed = bool(self.needers(digest)) or self.is_anticipated(digest)
        return self._desk.is_awaited(digest) and not is_needed

    def provide(
        self,
        digest: bytes,
        inputs: dict[str, NDArray[Any]],
        *,
        num_patches: int,
        decode_ms: float = 0.0,
    ) -> None:
        """Pixels have come. Changes: they are kept until encoded or needed by nobody.

        `decode_ms` is what it cost to make them, and is charged to those who need them.
        """
        cost = self._config.media_ms_cost * decode_ms
        if cost and (payers := self._desk.bill(digest, "decode")):
            self._fairness.share(payers, cost)
        self._desk.provide(digest, inputs, num_patches)
        self._unpark(digest)

    def refuse(self, digest: bytes, error: MmserveError) -> tuple[SequenceUpdate, ...]:
        """Pixels cannot be had: all sequences that need them end with this error.

        Those whose KV covers the picture go on. Changes: as `finish`.
        """
        self._desk.refuse(digest)
        self._unpark(digest)
        if self._desk.has_pixels(digest):
            return ()
        hit = [self._roster.live[sequence_id] for sequence_id in self.needers(digest)]
        finish = Finish("error", error=error)
        return tuple(
            self._roster.end(seq, finish) for seq in hit if self._roster.lacks(seq, digest)
        )

    def _check_priority(self, spec: SequenceSpec) -> None:
        policy = self._config.policy
        if spec.priority and not RULES[policy].by_priority:
            raise BadRequest(
                f"priority is {spec.priority}, policy {policy} knows no priorities",
                field="priority",
                reason="policy",
                hint="leave priority out, or serve with --policy priority",
            )

    def _unpark(self, digest: bytes) -> None:
        for sequence_id in self._desk.needers(digest):
            self._line.unpark(self._roster.live[sequence_id])

    # Hints

    def anticipate(self, sizes: Mapping[bytes, int], client: str = "") -> None:
        """Take up pictures (tokens by digest) that a request will soon have: all, or none.

        They are decoded when no sequence waits for pixels, encoded in what steps leave, and
        kept unpinned until one comes that has them. Their work is charged to `client`. A hint:
        beyond a bound on tokens nothing is done. Changes: pixels may be wanted.
        """
        self._desk.anticipate(sizes, client, self._clock())

    def is_anticipated(self, digest: bytes) -> bool:
        """Whether a picture is only hinted at, by `anticipate`. Pure."""
        return digest in self._desk.hints

    # Steps

    def plan(self) -> ForwardPlan | None:
        """The next step, or None if nothing can run now; without rows if it only encodes.

        Raises:
            LedgerBroken: the step before is not back.

        Changes: slots, tree, pins, the line. Follow with `commit` or `rollback`.
        """
        if self._flight is not None:
            raise LedgerBroken("a step was planned before the last one was back")
        start_s = self._clock()
        self._retracted.clear()
        builder, stalled = self._place_running()
        if stalled and not builder.rows:
            builder = self._make_room(stalled)
        elif not stalled:
            self._admit(builder)
            builder.encode_early()
        if not builder.rows and not builder.encoding.items:
            return None
        for planned in builder.rows:
            self._line.keep_claim(planned.sequence)
        self._roster.totals.steps += 1
        plan = ForwardPlan(
            step=self._roster.totals.steps,
            rows=tuple(planned.row for planned in builder.rows),
            encode=tuple(builder.encoding.items.values()),
            drop=self._desk.ledger.take_drops(),
            masks=step_masks(builder.rows),
        )
        self._flight = Flight(
            plan,
            tuple(builder.rows),
            start_s,
            plan_ms=(self._clock() - start_s) * 1e3,
            num_patches=sum(builder.encoding.num_patches.values()),
            retracted=tuple(self._retracted),
        )
        self._roster.in_flight = tuple(planned.sequence for planned in builder.rows)
        return plan

    def foresee(self) -> ForwardPlan | None:
        """The step that most likely follows the one that is out; None if that is open.

        For a device that is to begin it before this one is back. It is only a guess: plan the
        real step as ever, and ask `is_foreseen` whether it is the one begun. Pure.
        """
        flight, roster = self._flight, self._roster
        if flight is None or len(flight.rows) < len(roster.running) or len(self._desk.hints):
            return None
        if len(self._line) and len(roster.running) < self._config.max_running:
            return None
        running = self._ledgers.by_right_of_way(roster.running.values())
        return foreseen_plan(flight.plan.step + 1, running, flight.rows, self._ledgers)

    def commit(self, sampled: SampledTokens) -> tuple[SequenceUpdate, ...]:
        """Take in the result of the step that is out; the news, in the order of its rows.

        Changes: sequences, tree, slots, pins.
        """
        flight = self._land(sampled.step)
        self._tempo.note(flight, sampled)
        updates = take_results(self._roster, flight.plan, flight.rows, sampled)
        self._timeline.note(record_of(flight, sampled, updates, self.counts()))
        return updates

    def rollback(self, plan: ForwardPlan, error: Exception) -> tuple[SequenceUpdate, ...]:
        """The step that is out failed as a whole: its sequences end with this error.

        Changes: what the step put into tree, pool and ledgers is undone; others are unharmed.
        """
        flight = self._land(plan.step)
        updates = take_failure(self._roster, flight.plan, flight.rows, error)
        nothing = SampledTokens(plan.step, ())
        self._timeline.note(record_of(flight, nothing, updates, self.counts()))
        return updates

    # Accounts

    def flush(self) -> bool:
        """Forget all KV, features and hints; False, and nothing forgotten, if sequences run."""
        if self._roster.running or self._flight is not None:
            return False
        self._memory.flush()
        self._desk.forget_hints()
        self._desk.ledger.forget_unpinned()
        return True

    def counts(self) -> SchedCounts:
        """Ledgers and totals as they stand. Pure."""
        return self._roster.counts()

    def service(self) -> dict[str, float]:
        """Service charged by client so far, in prefill tokens. A copy. Pure."""
        return self._fairness.charged()

    def report(self) -> SchedReport:
        """Accounts of cache, clients and the optimum. Pure. Another thread may ask.

        Cost: milliseconds if requests have ended since, for the optimum.
        """
        running = tuple(self._roster.running.copy().values())
        return self._books.report(self.service(), running, self._line.num_by_client())

    def verify(self) -> None:
        """Raise LedgerBroken unless all ledgers add up. Pure. Cost: O(slots + nodes)."""
        self._roster.verify()

    def drawing(self, room: str, form: Literal["text", "svg", "json"] = "text") -> str:
        """State for people: the tree (`radix`), last steps (`sched`), encoded media (`vision`).

        Of the tree there is JSON too, with the queue and memory. Pure.
        Cost: tens of milliseconds for a large tree, or a long line.
        """
        if form == "json":
            return self._told(room)
        if room == "radix":
            tree = self._memory.tree
            return draw(tree) if form == "text" else draw_icicle(tree)
        if room == "sched":
            waiting = tuple(self._line)
            back = [sequence for sequence in waiting if sequence.num_retractions]
            waiters = [
                Waiter(sequence.sequence_id, sequence.spec.client, sequence.arrived_s)
                for sequence in (*back[:_MAX_DRAWN], *waiting[:_MAX_DRAWN])
            ]
            counts, records = self.counts(), self._timeline.records()
            if form == "svg":
                return draw_gantt(counts, records, waiters)
            return draw_steps(counts, records, waiters, self.report())
        if room == "vision":
            return draw_ledger(self._desk.ledger, form)
        raise NotFound(f"no drawing of {room}", what="drawing", name=room)

    def _told(self, room: str) -> str:
        if room != "radix":
            raise NotFound(f"no drawing of {room} as JSON", what="drawing", name=room)
        tree = outline(self._memory.tree, self._interner.name)
        return json.dumps(tree | told_memory(self.counts(), self._desk.ledger))

    # Planning

    def _place_running(self) -> tuple[StepBuilder, list[Sequence]]:
        """Rows for running sequences, and those that found no slots."""
        builder = StepBuilder(self._ledgers, self._tempo.budget(self._roster.running.values()))
        stalled = []
        running = self._ledgers.by_right_of_way(self._roster.running.values())
        for sequence in sorted(running, key=_lacks_more_than_one):
            outcome = builder.place(sequence)
            if outcome is not Outcome.PLACED:
                builder.watch(sequence)
            if sequence.missing > 1:
                self._roster.ask_ahead(sequence)
                self._line.keep_claim(sequence)
            if outcome is Outcome.SLOTS:
                stalled.append(sequence)
        return builder, stalled

    def _make_room(self, stalled: list[Sequence]) -> StepBuilder:
        """Nothing can move for want of slots: retract one after the other until one can."""
        builder = StepBuilder(self._ledgers, self._tempo.budget(self._roster.running.values()))
        while stalled and not builder.rows:
            running = self._ledgers.by_right_of_way(self._roster.running.values())
            first = next(sequence for sequence in running if sequence in stalled)
            others = [sequence for sequence in running if sequence is not first]
            if not others:
                raise LedgerBroken("a sequence alone finds no slots", free=0)
            last = others[-1]
            self._retracted.append(last.sequence_id)
            self._roster.retract(last)
            builder, stalled = self._place_running()
        return builder

    def _admit(self, builder: StepBuilder) -> None:
        """Let waiting sequences start, while there is room and few have been refused."""
        running, memory, line = self._roster.running, self._memory, self._line
        num_reserved = sum(self._ledgers.growth(sequence) for sequence in running.values())
        refused: list[Sequence] = []
        for _ in range(_MAX_TRIES):
            if len(running) >= self._config.max_running or builder.is_full:
                break
            if running and memory.num_available <= num_reserved:
                break  # not one slot for anybody new, so nobody need be looked at
            candidate = line.next()
            if candidate is None:
                break
            beside = Beside(num_reserved, bool(refused)) if running else None
            outcome = builder.place(candidate, beside)
            if outcome is Outcome.PLACED:
                self._roster.start(candidate)
                num_reserved += self._ledgers.growth(candidate)
                self._pass_pictures(builder, candidate)
                if self._has_passed(refused):
                    break
            elif self._refuse(candidate, outcome, builder):
                refused.append(candidate)
                is_last = candidate.passes >= self._max_passes(candidate)
                if is_last or len(refused) >= _MAX_REFUSED:
                    break
        line.restore()

    def _refuse(self, candidate: Sequence, outcome: Outcome, builder: StepBuilder) -> bool:
        """A candidate got no row; whether others pass it by starting now.

        Changes: it is offered again in the next step, or when its pixels come.
        """
        if outcome is Outcome.MEDIA:
            self._roster.ask_ahead(candidate)
            if self._roster.awaits_pixels(candidate):
                self._line.park(candidate)
                return False
            builder.held_back.append(candidate)
            builder.takes_pictures &= candidate.passes < self._max_passes(candidate)
        self._line.set_aside(candidate)
        return outcome in (Outcome.SLOTS, Outcome.BUDGET)

    def _has_passed(self, refused: list[Sequence]) -> bool:
        """Somebody has started before these; whether one of them lets nobody else pass."""
        for sequence in refused:
            sequence.passes += 1
        return any(sequence.passes >= self._max_passes(sequence) for sequence in refused)

    def _pass_pictures(self, builder: StepBuilder, candidate: Sequence) -> None:
        """One has started; if it has pictures to compute, it passes those held back for theirs.

        Changes: passes; the step, which takes no more pictures once one was passed enough.
        """
        if candidate.spans_in(builder.rows[-1].row.start, candidate.num_prompt):
            builder.takes_pictures &= not self._has_passed(builder.held_back)

    def _max_passes(self, sequence: Sequence) -> int:
        return 0 if sequence.num_retractions else self._config.max_passes

    def _land(self, step: int) -> Flight:
        flight, self._flight = self._flight, None
        if flight is None or flight.plan.step != step:
            raise LedgerBroken(f"step {step} came back, and was not out", step=step)
        self._roster.in_flight = ()
        return flight


def _lacks_more_than_one(sequence: Sequence) -> bool:
    """Answers under way come before prompts in a step."""
    return sequence.missing != 1
