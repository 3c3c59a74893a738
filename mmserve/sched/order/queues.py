"""Which queue goes first, and from which place in the tree.

    lane     the clients of one class; classes strictly one before the other
    queue    one client's waiting sequences (everybody's, without fairness), in sweeps
    place    a node with KV from which sequences of a queue may start

A *sweep* is one pass over those that wait, best place first. Newcomers join the sweep under way
while it has room: for a few, or for a few times as many as it began with beyond a few. The
others make up the next one. So a sequence starts before anything of its queue and priority
that came after its own sweep was full, and still a long line is served branch by branch.

In a lane, queues with credit (see `fairness`) go by phase, then by place; a queue that many
starts of others have passed goes before all.

A request that goes on where another of the sweep ended belongs to a program that came before;
eight times as many of these may join.

    began with   5   9   16   100      of these wait
    room for     8   8   64   736      more that join

All heaps here are lazy: an entry whose key has changed is set right when it comes up; whatever
makes a key better pushes a new entry. So does a change of a queue's best place, since the next
one may look better beside other queues.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from mmserve.radix import Node
from mmserve.sched.order.crowds import PrefixOrder
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.rules import Key, OrderRule
from mmserve.sched.sequence import Sequence

__all__ = ["Queues"]

_PASSES = 32
"""Starts of others, for each queue there is and for eight more, that may pass a queue that has
credit before it is asked; not credit alone bounds that then, and locality has a long rein."""
_CONTINUED = 8
"""Turns of conversations under way that may join a sweep, for each newcomer that may."""


_FrontKey = tuple[int, Any, int]


class _Queue:
    """Places of one queue, and its sweep."""

    __slots__ = (
        "has_begun",
        "num_aside",
        "num_continued",
        "num_joined",
        "num_room",
        "num_waiting",
        "places",
        "since",
        "sweep",
    )

    def __init__(self) -> None:
        self.places: list[tuple[Key, int, Node]] = []
        self.num_waiting = 0
        self.since = 0
        """Starts of all queues before it had something to start, or last started one."""
        self.sweep = 0
        self.has_begun = False
        self.num_aside = 0
        self.num_continued = 0
        self.num_joined = 0
        self.num_room = 0


class _Lane:
    """Queues of one class: those in front by phase, place and arrival, the others by service.

    Sweeps and priorities of different queues are not compared.
    """

    __slots__ = ("front", "passed", "resting")

    def __init__(self) -> None:
        self.front: list[tuple[_FrontKey, int, str]] = []
        self.resting: list[tuple[float, int, str]] = []
        self.passed: list[tuple[int, int, str]] = []
        """Those in front, by when they last started a sequence."""


class Queues:
    """Picks the next sequence: class, then credit, then key.

    Args:
        rule: the order within what may start.
        num_joiners: the few of above; 0 for none.
    """

    def __init__(self, rule: OrderRule, fairness: Fairness, num_joiners: int) -> None:
        self._rule = rule
        self._fairness = fairness
        self._num_joiners = num_joiners
        self._queues: dict[str, _Queue] = {}
        self._lanes: dict[int, _Lane] = {}
        self._serial = 0
        self._num_starts = 0
        self._last_sweep = 0
        """Highest number of a sweep of any queue, so that a new queue's are all new."""
        self.order = PrefixOrder(fairness.queue_of, self._note_place, by_rank=not rule.by_sweep)

    # Sequences

    def enter(self, sequence: Sequence, goes_on: tuple[str, int] | None) -> None:
        """A newcomer is given its sweep. Changes: the queue's sweep.

        `goes_on` is the mark of the sequence whose prompt and answer it goes on from, if any.
        """
        queue = self._queue_to_enter(sequence)
        sequence.sweep = queue.sweep
        if not queue.has_begun or not self._fairness.is_on:
            return
        goes_on_now = goes_on == (sequence.spec.client, queue.sweep)
        if goes_on_now and queue.num_continued < _CONTINUED * queue.num_room:
            queue.num_continued += 1
            return
        queue.num_joined += 1
        sequence.sweep += queue.num_joined > queue.num_room

    def enter_again(self, sequence: Sequence) -> None:
        """A retracted sequence goes before all sweeps. Changes: the queue."""
        self._queue_to_enter(sequence)

    def leave(self, sequence: Sequence) -> None:
        """A sequence waits no more. Changes: the queue; an empty one is forgotten."""
        name = self._queue_of(sequence)
        queue = self._queues[name]
        queue.num_waiting -= 1
        if not queue.num_waiting:
            del self._queues[name]

    def start(self, sequence: Sequence) -> None:
        """A sequence begins to run. Changes: who has been passed how often."""
        self._num_starts += 1
        name = self._queue_of(sequence)
        self._fairness.start(name)
        if name in self._queues:
            self._queues[name].since = self._num_starts

    def set_aside(self, sequence: Sequence) -> None:
        """Pass it over, but keep its queue's claim to be asked. Changes: what `pick` names."""
        self._queues[self._queue_of(sequence)].num_aside += 1
        self.order.withdraw(sequence)

    def restore(self, sequence: Sequence) -> None:
        """It may be picked again. Changes: what `pick` names."""
        self.order.offer(sequence)
        self._queues[self._queue_of(sequence)].num_aside -= 1

    # The next one

    def pick(self, *, may_advance: bool) -> Sequence | None:
        """Who starts next, or None. With `may_advance` a class with no credit gets more.

        Changes: rounds, sweeps, the heaps; the sequence stays where it is.
        """
        if self._rule.is_weighed:
            self._weigh_again()
        for client_class in sorted(self._lanes, reverse=True):
            lane = self._lanes[client_class]
            name = self._front_queue(lane)
            if name is None and self._has_resting(lane):
                if not may_advance:
                    return None
                self._advance(lane)
                name = self._front_queue(lane)
            if name is not None:
                queue = self._queues[name]
                self._begin_sweep(queue, queue.places[0][0][1])
                return self.order.first_sequence(queue.places[0][2], name)
            if not lane.resting:
                del self._lanes[client_class]
        return None

    # Inside

    def _queue_to_enter(self, sequence: Sequence) -> _Queue:
        """Its queue, in which one more waits; an empty one begins a new sweep."""
        queue = self._queues.setdefault(self._queue_of(sequence), _Queue())
        if not queue.num_waiting:
            queue.sweep, queue.has_begun = self._last_sweep + 1, False
        self._last_sweep = max(self._last_sweep, queue.sweep + 1)
        queue.num_waiting += 1
        return queue

    def _queue_of(self, sequence: Sequence) -> str:
        return self._fairness.queue_of(sequence.spec.client)

    def _begin_sweep(self, queue: _Queue, sweep: int) -> None:
        if sweep > queue.sweep or (sweep == queue.sweep and not queue.has_begun):
            queue.sweep, queue.has_begun = sweep, True
            queue.num_joined = queue.num_continued = 0
            few = self._num_joiners
            queue.num_room = max(few, few * (queue.num_waiting - few))

    def _note_place(self, name: str, node: Node) -> None:
        """A place's first member has changed. What stands in front may look better then."""
        queue = self._queues.get(name)
        if queue is None:
            return
        places, first = queue.places, self.order.first(node, name)
        was_best = bool(places) and places[0][2] is node
        if self._key_of(name) is None and first is not None:
            self._fairness.lift(name)
            if not queue.num_aside:
                queue.since = self._num_starts
        is_best = was_best or not places
        if first is not None:
            key = self._rule.key(first, node)
            is_best = is_best or key < places[0][0]
            self._push_place(name, key, node)
        if is_best and (best := self._key_of(name)) is not None:
            self._note_queue(name, best)

    def _weigh_again(self) -> None:
        """Give every place its key of now. Changes: the heaps. Cost: O(places)."""
        for name, queue in self._queues.items():
            nodes = dict.fromkeys(node for _, _, node in queue.places)
            queue.places.clear()
            for node in nodes:
                first = self.order.first(node, name)
                if first is not None:
                    key = self._rule.key(first, node)
                    self._push_place(name, key, node)
            if queue.places:
                self._note_queue(name, queue.places[0][0])

    def _note_queue(self, name: str, key: Key) -> None:
        client_class = self._fairness.class_of(name)
        lane = self._lanes.setdefault(client_class, _Lane())
        if self._fairness.may_start(name):
            self._push_front(lane, name, key)
        else:
            self._push_name(lane.resting, self._fairness.level(name), name)

    def _push_front(self, lane: _Lane, name: str, key: Key) -> None:
        self._push_name(lane.front, self._front_key(name, key), name)
        self._push_name(lane.passed, self._queues[name].since, name)

    def _front_key(self, name: str, key: Key) -> _FrontKey:
        return (self._fairness.phase(name), *key[2:])

    def _push_place(self, name: str, key: Key, node: Node) -> None:
        queue = self._queues[name]
        self._push(queue.places, key, node)
        if len(queue.places) > 64 + 4 * queue.num_waiting:
            _sweep(queue.places, lambda node: self.order.first(node, name) is not None)

    def _push_name(self, heap: list[Any], key: Any, name: str) -> None:  # noqa: ANN401
        self._push(heap, key, name)
        if len(heap) > 64 + 4 * len(self._queues):
            _sweep(heap, self._queues.__contains__)

    def _push(self, heap: list[Any], key: Any, item: Any) -> None:  # noqa: ANN401
        self._serial += 1
        heapq.heappush(heap, (key, self._serial, item))

    def _key_of(self, name: str) -> Key | None:
        """Key of a queue's best place. Changes: entries of places that are none are gone."""
        queue = self._queues.get(name)
        if queue is None:
            return None
        places = queue.places
        while places:
            key, serial, node = places[0]
            first = self.order.first(node, name)
            now = None if first is None else self._rule.key(first, node)
            if now == key:
                return key
            if now is None:
                heapq.heappop(places)
            else:
                heapq.heapreplace(places, (now, serial, node))
        return None

    def _front_queue(self, lane: _Lane) -> str | None:
        """The queue that goes first, of those with credit: passed too often, or best place."""
        name = self._passed_queue(lane)
        if name is not None:
            return name
        front = lane.front
        while front:
            key, serial, name = front[0]
            best = self._key_of(name)
            now = None if best is None else self._front_key(name, best)
            if now is None:
                heapq.heappop(front)
            elif not self._fairness.may_start(name):
                heapq.heappop(front)
                self._push_name(lane.resting, self._fairness.level(name), name)
            elif now == key:
                return name
            else:
                heapq.heapreplace(front, (now, serial, name))
        return None

    def _passed_queue(self, lane: _Lane) -> str | None:
        """A queue with credit that so many starts of others have passed that it goes first."""
        passed = lane.passed
        most = _PASSES * (8 + len(self._queues))
        while passed:
            since, serial, name = passed[0]
            if self._key_of(name) is None or not self._fairness.may_start(name):
                heapq.heappop(passed)
            elif self._queues[name].since != since:
                heapq.heapreplace(passed, (self._queues[name].since, serial, name))
            else:
                return name if self._num_starts - since >= most else None
        return None

    def _has_resting(self, lane: _Lane) -> bool:
        """Whether anybody without credit has something to start."""
        while lane.resting:
            if self._key_of(lane.resting[0][2]) is not None:
                return True
            heapq.heappop(lane.resting)
        return False

    def _advance(self, lane: _Lane) -> None:
        """Give the class credit until the queue served least has some, and its equals."""
        resting, has_gone_on = lane.resting, False
        while resting:
            level, serial, name = resting[0]
            now, key = self._fairness.level(name), self._key_of(name)
            if key is None:
                heapq.heappop(resting)
            elif now != level:
                heapq.heapreplace(resting, (now, serial, name))
            elif self._fairness.may_start(name):
                heapq.heappop(resting)
                self._push_front(lane, name, key)
            elif has_gone_on:
                return
            else:
                self._fairness.advance(name)
                has_gone_on = True


def _sweep(heap: list[Any], is_true: Callable[[Any], bool]) -> None:
    """Leave one entry, the best, of each item that is still one. Changes: the heap."""
    best: dict[Any, Any] = {}
    for entry in sorted(heap):
        if is_true(entry[2]):
            best.setdefault(entry[2], entry)
    heap[:] = best.values()
