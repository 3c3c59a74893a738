"""Whose turn it is, and from which place in the tree it starts.

    lane    the clients of one class; classes strictly one before the other
    turn    one client's waiting sequences (everybody's, without fairness), in sweeps
    place   a node with KV from which sequences of a turn may start

A *sweep* is one pass over those that wait, best place first. Newcomers join the sweep under way
while it has room: for a few, or for a few times as many as it began with beyond a few. The
others make up the next one. So a sequence starts before anything that came after its own
sweep was full, and still a long line is served branch by branch.

A request that goes on where another of the sweep ended belongs to a program that came before;
eight times as many of these may join.

    began with   5   9   16   100      of these wait
    room for     8   8   64   736      more that join

All heaps here are lazy: an entry whose key has changed is set right when it comes up; whatever
makes a key better pushes a new entry. So does a change of a turn's best place, since the next
one may look better beside other turns.
"""

from __future__ import annotations

import heapq
from typing import Any

from mmserve.radix import Node
from mmserve.sched.fairness import Fairness
from mmserve.sched.order import PrefixOrder
from mmserve.sched.rules import Key, OrderRule
from mmserve.sched.sequence import Sequence

__all__ = ["Turns"]

_CONTINUED = 8
"""Turns of conversations under way that may join a sweep, for each newcomer that may."""


_FrontKey = tuple[int, Any, int]


class _Turn:
    """Places of one turn, and its sweep."""

    __slots__ = (
        "has_begun",
        "num_continued",
        "num_joined",
        "num_room",
        "num_waiting",
        "places",
        "sweep",
    )

    def __init__(self) -> None:
        self.places: list[tuple[Key, int, Node]] = []
        self.num_waiting = 0
        self.sweep = 0
        self.has_begun = False
        self.num_continued = 0
        self.num_joined = 0
        self.num_room = 0


class _Lane:
    """Turns of one class: those in front by phase, place and arrival, the others by service.

    Sweeps and priorities of different turns are not compared.
    """

    __slots__ = ("front", "resting")

    def __init__(self) -> None:
        self.front: list[tuple[_FrontKey, int, str]] = []
        self.resting: list[tuple[float, int, str]] = []


class Turns:
    """Picks the next sequence: class, then credit, then key.

    Args:
        rule: the order within what may start.
        num_joiners: the few of above; 0 for none.
    """

    def __init__(self, rule: OrderRule, fairness: Fairness, num_joiners: int) -> None:
        self._rule = rule
        self._fairness = fairness
        self._num_joiners = num_joiners
        self._turns: dict[str, _Turn] = {}
        self._lanes: dict[int, _Lane] = {}
        self._serial = 0
        self._last_sweep = 0
        """Highest number of a sweep of any turn, so that a new turn's are all new."""
        self.order = PrefixOrder(fairness.turn_of, self._note_place, by_rank=not rule.by_sweep)

    # Sequences

    def enter(self, sequence: Sequence, goes_on: tuple[str, int] | None) -> None:
        """A newcomer is given its sweep. Changes: the turn's sweep.

        `goes_on` is the mark of the sequence whose prompt and answer it goes on from, if any.
        """
        turn = self._turn_to_enter(sequence)
        sequence.sweep = turn.sweep
        if not turn.has_begun or not self._fairness.is_on:
            return
        goes_on_now = goes_on == (sequence.spec.client, turn.sweep)
        if goes_on_now and turn.num_continued < _CONTINUED * turn.num_room:
            turn.num_continued += 1
            return
        turn.num_joined += 1
        sequence.sweep += turn.num_joined > turn.num_room

    def enter_again(self, sequence: Sequence) -> None:
        """A retracted sequence goes before all sweeps. Changes: the turn."""
        self._turn_to_enter(sequence)
        sequence.sweep = -1

    def leave(self, sequence: Sequence) -> None:
        """A sequence waits no more. Changes: the turn; an empty one is forgotten."""
        name = self._turn_of(sequence)
        turn = self._turns[name]
        turn.num_waiting -= 1
        if not turn.num_waiting:
            del self._turns[name]

    # The next one

    def pick(self, *, may_advance: bool) -> Sequence | None:
        """Who starts next, or None. With `may_advance` a class with no credit gets more.

        Changes: rounds, sweeps, the heaps; the sequence stays where it is.
        """
        if self._rule.is_weighed:
            self._weigh_again()
        for client_class in sorted(self._lanes, reverse=True):
            lane = self._lanes[client_class]
            name = self._front_turn(lane)
            if name is None and self._has_resting(lane):
                if not may_advance:
                    return None
                self._advance(lane)
                name = self._front_turn(lane)
            if name is not None:
                turn = self._turns[name]
                self._begin_sweep(turn, turn.places[0][0][1])
                return self.order.first_sequence(turn.places[0][2], name)
            if not lane.resting:
                del self._lanes[client_class]
        return None

    # Inside

    def _turn_to_enter(self, sequence: Sequence) -> _Turn:
        """Its turn, in which one more waits; an empty one begins a new sweep."""
        turn = self._turns.setdefault(self._turn_of(sequence), _Turn())
        if not turn.num_waiting:
            turn.sweep, turn.has_begun = self._last_sweep + 1, False
        self._last_sweep = max(self._last_sweep, turn.sweep + 1)
        turn.num_waiting += 1
        return turn

    def _turn_of(self, sequence: Sequence) -> str:
        return self._fairness.turn_of(sequence.spec.client)

    def _begin_sweep(self, turn: _Turn, sweep: int) -> None:
        if sweep > turn.sweep or (sweep == turn.sweep and not turn.has_begun):
            turn.sweep, turn.has_begun = sweep, True
            turn.num_joined = turn.num_continued = 0
            few = self._num_joiners
            turn.num_room = max(few, few * (turn.num_waiting - few))

    def _note_place(self, name: str, node: Node) -> None:
        """A place's first member has changed. What stands in front may look better then."""
        turn = self._turns.get(name)
        if turn is None:
            return
        if self._key_of(name) is None:
            self._fairness.lift(name)
        places, first = turn.places, self.order.first(node, name)
        is_best = not places or places[0][2] is node
        if first is not None:
            key = self._rule.key(first, node)
            is_best = is_best or key < places[0][0]
            self._push(places, key, node, turn.num_waiting)
        if is_best and (best := self._key_of(name)) is not None:
            self._note_turn(name, best)

    def _weigh_again(self) -> None:
        """Give every place its key of now. Changes: the heaps. Cost: O(places)."""
        for name, turn in self._turns.items():
            nodes = dict.fromkeys(node for _, _, node in turn.places)
            turn.places.clear()
            for node in nodes:
                first = self.order.first(node, name)
                if first is not None:
                    key = self._rule.key(first, node)
                    self._push(turn.places, key, node, turn.num_waiting)
            if turn.places:
                self._note_turn(name, turn.places[0][0])

    def _note_turn(self, name: str, key: Key) -> None:
        client_class = self._fairness.class_of(name)
        lane = self._lanes.setdefault(client_class, _Lane())
        if self._fairness.may_start(name):
            self._push(lane.front, self._front_key(name, key), name, len(self._turns))
        else:
            self._push(lane.resting, self._fairness.level(name), name, len(self._turns))

    def _front_key(self, name: str, key: Key) -> _FrontKey:
        return (self._fairness.phase(name), *key[2:])

    def _push(self, heap: list[Any], key: Any, item: Any, most: int) -> None:  # noqa: ANN401
        """Put an entry in; of `most` items, so that old ones are swept now and then."""
        self._serial += 1
        heapq.heappush(heap, (key, self._serial, item))
        if len(heap) > 64 + 4 * most:
            best: dict[Any, Any] = {}
            for entry in sorted(heap):
                best.setdefault(entry[2], entry)
            heap[:] = best.values()

    def _key_of(self, name: str) -> Key | None:
        """Key of a turn's best place. Changes: entries of places that are none are gone."""
        turn = self._turns.get(name)
        if turn is None:
            return None
        places = turn.places
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

    def _front_turn(self, lane: _Lane) -> str | None:
        """The turn whose place goes first, of those with credit."""
        front = lane.front
        while front:
            key, serial, name = front[0]
            best = self._key_of(name)
            now = None if best is None else self._front_key(name, best)
            if now is None:
                heapq.heappop(front)
            elif not self._fairness.may_start(name):
                heapq.heappop(front)
                self._push(lane.resting, self._fairness.level(name), name, len(self._turns))
            elif now == key:
                return name
            else:
                heapq.heapreplace(front, (now, serial, name))
        return None

    def _has_resting(self, lane: _Lane) -> bool:
        """Whether anybody without credit has something to start."""
        while lane.resting:
            if self._key_of(lane.resting[0][2]) is not None:
                return True
            heapq.heappop(lane.resting)
        return False

    def _advance(self, lane: _Lane) -> None:
        """Give the class credit until the turn served least has some, and its equals."""
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
                self._push(lane.front, self._front_key(name, key), name, len(self._turns))
            elif has_gone_on:
                return
            else:
                self._fairness.advance(name)
                has_gone_on = True
