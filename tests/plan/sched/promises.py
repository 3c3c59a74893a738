"""What the scheduler promises of every step, checked from outside by plain counting."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from mmserve.core import ForwardPlan, SchedConfig
from mmserve.sched import Scheduler
from mmserve.sched.order.rules import RULES

__all__ = ["Ledger", "Promises", "charges", "check_budgets"]

SWEPT = ("longest-prefix", "dfs-weight", "shortest-prefill")
_CLOSE = 1e-6
_PASSES = 32
"""Starts of others that a queue may be passed by, for each of them and for eight more."""


def check_budgets(plan: ForwardPlan, config: SchedConfig, specs, num_patches) -> None:
    """A step keeps to tokens, chunk, patches and rows; only what cannot be cut goes beyond.

    No row begins or ends inside of an atomic span.

    `specs` are by sequence id; `num_patches` tells those of a picture by its digest.
    """
    ids = [row.sequence_id for row in plan.rows]
    assert len(set(ids)) == len(ids) <= config.max_running
    assert not any(_cuts_atomic(row, specs[row.sequence_id].prompt) for row in plan.rows)
    whole = [row for row in plan.rows if _ends_atomic(row, specs[row.sequence_id].prompt)]
    too_long = [row for row in plan.rows if len(row.token_ids) > config.chunk_tokens]
    assert all(row in whole for row in too_long)
    if plan.num_tokens > config.max_step_tokens:
        prompt_rows = [row for row in plan.rows if len(row.token_ids) > 1]
        assert len(prompt_rows) == 1
        assert prompt_rows[0] in whole
    patches = [num_patches(item.digest) for item in plan.encode]
    assert sum(patches) <= config.max_step_patches or len(patches) == 1


def _cuts_atomic(row, prompt) -> bool:
    edges = (row.start, row.start + len(row.token_ids))
    return any(
        span.is_atomic and span.start < edge < span.end
        for span in prompt.spans
        for edge in edges
    )


def _ends_atomic(row, prompt) -> bool:
    stop = row.start + len(row.token_ids)
    return any(span.is_atomic and span.start < stop <= span.end for span in prompt.spans)


class Ledger:
    """Hits and misses of prompt tokens counted from the rows of plans alone."""

    def __init__(self) -> None:
        self.known: dict[int, int] = defaultdict(int)
        self.hits: Counter[int] = Counter()
        self.misses: Counter[int] = Counter()
        self._end: dict[int, int] = {}
        self._retractions: Counter[int] = Counter()

    def note(self, plan: ForwardPlan, specs, num_retractions: Mapping[int, int]) -> None:
        """Count a plan; no token is computed twice, except after a retraction."""
        for row in plan.rows:
            number, stop = row.sequence_id, row.start + len(row.token_ids)
            num_prompt = specs[number].prompt.num_tokens
            if num_retractions[number] == self._retractions[number]:
                assert row.start >= self._end.get(number, 0), "a token was computed twice"
            self._retractions[number] = num_retractions[number]
            self._end[number] = stop
            start, stop = min(row.start, num_prompt), min(stop, num_prompt)
            self.hits[number] += max(0, start - self.known[number])
            self.known[number] = max(self.known[number], start)
            self.misses[number] += max(0, stop - self.known[number])
            self.known[number] = max(self.known[number], stop)

    def check(self, number: int, usage) -> None:
        """What a sequence was told of its prompt is what was counted."""
        hits = sum(use.num_tokens for use in usage.cache if use.outcome == "hit")
        misses = sum(use.num_tokens for use in usage.cache if use.outcome != "hit")
        assert usage.cached_tokens == hits == self.hits[number]
        assert misses == self.misses[number]
        assert hits + misses == self.known[number]
        for kind in ("text", "image", "video"):
            told = sum(
                u.num_tokens for u in usage.cache if (u.kind, u.outcome) == (kind, "hit")
            )
            assert getattr(usage, f"cached_{kind}_tokens") == told


@dataclass(frozen=True, slots=True)
class _Look:
    """One who waited before a plan; `is_blind` if all it lacks is text.

    `sweep` is that of its rank: whoever was retracted goes before all sweeps, and has none.
    """

    number: int
    queue: str
    priority: tuple[int, int]
    sweep: int
    is_blind: bool


class Promises:
    """Sweeps, rounds and charges, watched over a run."""

    def __init__(self, sched: Scheduler, config: SchedConfig) -> None:
        self._sched, self._config = sched, config
        self._line, self._fairness = sched._line, sched._fairness
        self._passed: Counter[int] = Counter()
        self._looks: list[_Look] = []
        self._lagging: set[str] = set()

    def before_plan(self) -> None:
        """Remember who may start."""
        fairness = self._fairness
        self._looks = [
            _Look(
                seq.sequence_id,
                fairness.queue_of(seq.spec.client),
                *seq.order_rank[:2],
                self._is_blind(seq),
            )
            for seq in self._line
            if seq.is_offered
        ]

    def after_plan(self, plan: ForwardPlan | None) -> None:
        """Nobody free was passed too often, and no client fell behind.

        One that lacks pictures may wait for room for them while others start that lack none.
        """
        if self._config.fairness and self._config.policy in SWEPT:
            self._check_sweeps(() if plan is None else plan.rows)
        if self._config.fairness:
            self._check_rounds()

    def _check_sweeps(self, rows) -> None:
        waiting = {seq.sequence_id: seq for seq in self._line}
        running = self._sched._roster.running
        starts = {row.sequence_id: row.start for row in rows}
        started = [
            replace(look, is_blind=not seq.spans_in(starts[look.number], seq.num_prompt))
            for look in self._looks
            if (seq := running.get(look.number)) is not None
        ]
        for look in self._looks if started else ():
            seq = waiting.get(look.number)
            if seq is None or not seq.is_offered:
                continue
            num_passed = sum(
                other.queue == look.queue
                and other.priority >= look.priority
                and other.sweep > look.sweep
                and (look.is_blind or not other.is_blind)
                for other in started
            )
            if not num_passed or self._is_shared(seq):
                continue
            self._passed[look.number] += num_passed
            assert self._passed[look.number] <= self._config.max_passes, (
                f"sequence {look.number} was passed {self._passed[look.number]} times"
            )

    def _is_blind(self, seq) -> bool:
        """Whether no token of a picture is left to compute."""
        return not seq.spans_in(self._sched._memory.num_cached(seq), seq.num_prompt)

    def _is_shared(self, seq) -> bool:
        """Whether one that runs computes tokens that this one lacks."""
        lacks = self._sched._memory.num_cached(seq)
        namespace = seq.spec.prompt.namespace
        mine = seq.keys.view(0, seq.match_limit)
        for other in self._sched._roster.running.values():
            if other.spec.prompt.namespace != namespace:
                continue
            theirs = other.keys.view(0, len(other.keys))
            length = min(len(mine), len(theirs))
            differs = np.flatnonzero(mine[:length] != theirs[:length])
            if (int(differs[0]) if len(differs) else length) > lacks:
                return True
        return False

    def _check_rounds(self) -> None:
        """Whoever always had something to start is at most one round behind."""
        fairness, quantum = self._fairness, self._config.quantum_tokens
        before = {look.queue for look in self._looks}
        clients = {fairness.queue_of(seq.spec.client) for seq in self._line}
        self._lagging = {name for name in self._lagging if name in clients}
        for name in clients:
            least = (fairness._round(fairness.class_of(name)) - 1) * quantum
            is_behind = fairness.level(name) < least - _CLOSE
            if not is_behind:
                self._lagging.discard(name)
            elif name not in before or name in self._lagging or not self._is_free(name):
                self._lagging.add(name)
            else:
                raise AssertionError(f"client {name} fell behind")

    def _is_free(self, name: str) -> bool:
        """Whether a queue has somebody who may start and waits for nobody's tokens."""
        return any(
            seq.is_offered
            and self._fairness.queue_of(seq.spec.client) == name
            and not self._is_shared(seq)
            for seq in self._line
        )

    def check_order(self) -> None:
        """`next` names whoever has the least key of all who may start, by brute force."""
        line, fairness = self._line, self._fairness
        rule = RULES[self._config.policy]
        free = [(seq, node) for seq in line if (node := self._place(seq)) is not None]
        if not free:
            return
        queues = {seq.sequence_id: fairness.queue_of(seq.spec.client) for seq, _ in free}
        top = max(fairness.class_of(queue) for queue in queues.values())
        levels = {
            queue: fairness.level(queue)
            for queue in queues.values()
            if fairness.class_of(queue) == top
        }
        quantum = self._config.quantum_tokens
        limit = max(fairness._round(top), min(levels.values()) // quantum + 1) * quantum
        keys = [
            (rule.key(seq.order_rank, node), seq.sequence_id, seq, node)
            for seq, node in free
            if levels.get(queues[seq.sequence_id], np.inf) < limit or not fairness.is_on
        ]
        got = line.next()
        assert got is not None
        firsts: dict[str, tuple] = {}
        for entry in sorted(keys):
            firsts.setdefault(queues[entry[1]], entry)
        queue = min(firsts, key=lambda queue: (fairness.phase(queue), *firsts[queue][0][2:]))
        passed = self._most_passed(firsts)
        if passed:
            queue = fairness.queue_of(got.spec.client)
            assert queue in passed
        best = firsts[queue][2]
        if not rule.by_sweep:
            assert got is best
            return
        assert got.order_rank[:2] == best.order_rank[:2]
        assert self._place(got) is self._place(best)
        assert _is_above(got.hook, best.hook), f"{got.sequence_id}, not {best.sequence_id}"

    def _most_passed(self, names) -> set[str]:
        """Queues that others' starts have passed most often, if it was often enough."""
        queues = self._line._queues
        since = {name: queues._queues[name].since for name in names}
        oldest = min(since.values())
        is_passed = queues._num_starts - oldest >= _PASSES * (8 + len(queues._queues))
        return {name for name in names if is_passed and since[name] == oldest}

    def _place(self, seq):
        """The node with KV from which it may start now, or None."""
        node = seq.hook if seq.is_offered else None
        while node is not None and node.is_ghost:
            node = None if node in self._line._queues.order._claims else node.parent
        return node


def _is_above(upper, lower) -> bool:
    """Whether `upper` is on the way to `lower`, or `lower` itself."""
    while lower is not None and lower is not upper:
        lower = lower.parent
    return lower is upper


def charges(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Service added in all."""
    return sum(after.values()) - sum(before.values())
