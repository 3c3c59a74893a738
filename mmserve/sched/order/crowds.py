"""Who of a queue starts next, kept up to date as the tree changes.

    root -- [system prompt] --+-- [picture A] --+-- (question 1)   seq 7
             KV               |    KV           +-- (question 2)   seq 9
                              +-- (picture B) --+-- (question 1)   seq 8
                                   ghost        +-- (question 2)   seq 12

A *crowd* is what may start from one node: sequences hung there and ghosts below it, by rank.
A ghost's crowd stands in its parent's crowd with its first member. A node with KV whose crowd
has a first member is a *place*: starting from it, a sequence has all of the node's depth
cached. So when the picture gets KV, one place is added, however many questions hang below.

A sequence hung at a ghost goes before what hangs below it, if priority and sweep are the same:
it computes the beginning of their prompts, and perhaps, with its answer, more.

A ghost is *claimed* while a running sequence computes its beginning; what hangs below would
compute the same tokens again, and is not offered until they are there.

Cost: O(ghosts above) heap operations for each sequence that comes or goes, O(queues) for each
node that gets or loses KV, whatever the number of those that wait.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from mmserve.core import LedgerBroken
from mmserve.radix import Node
from mmserve.sched.order.rules import Rank
from mmserve.sched.sequence import Sequence

__all__ = ["PrefixOrder"]

_Entry = tuple[Rank, int, Sequence | Node]


class _Crowd:
    """What may start from one node in one queue: `own` hangs there, `below` are ghosts below.

    `first` is the least rank of both.
    """

    __slots__ = ("below", "first", "own")

    def __init__(self) -> None:
        self.own: list[_Entry] = []
        self.below: list[_Entry] = []
        self.first: Rank | None = None


class PrefixOrder:
    """Crowds of all nodes, by queue. Watches the tree.

    Args:
        queue_of: queue of a client.
        on_place: hears of a place whose first member has changed, or is gone.
        by_rank: whether rank alone decides, wherever a sequence hangs.
    """

    def __init__(
        self,
        queue_of: Callable[[str], str],
        on_place: Callable[[str, Node], None],
        *,
        by_rank: bool = False,
    ) -> None:
        self._queue_of = queue_of
        self._on_place = on_place
        self._by_rank = by_rank
        self._crowds: dict[Node, dict[str, _Crowd]] = {}
        self._claims: dict[Node, set[Sequence]] = {}
        self._serial = 0

    # Questions

    def first(self, node: Node, queue: str) -> Rank | None:
        """Rank of the first that may start from a place; None if there is none. Pure."""
        crowd = None if node.is_ghost else self._crowd(node, queue)
        return None if crowd is None else crowd.first

    def first_sequence(self, node: Node, queue: str) -> Sequence:
        """Who that is. Pure."""
        while True:
            crowd = self._crowd(node, queue)
            if crowd is None or crowd.first is None:
                raise LedgerBroken("a place promises a sequence that is not there")
            source = self._choose(node, crowd)
            if isinstance(source, Sequence):
                return source
            node = source

    # Sequences

    def offer(self, sequence: Sequence) -> None:
        """A sequence that hangs in the tree may start. Changes: crowds."""
        node = _hook(sequence)
        sequence.is_offered = True
        queue = self._queue_of(sequence.spec.client)
        self._push(node, queue, sequence.order_rank, sequence)
        self._refresh(node, queue)

    def withdraw(self, sequence: Sequence) -> None:
        """It may not, or has started. Changes: crowds."""
        if sequence.is_offered:
            sequence.is_offered = False
            self._refresh(_hook(sequence), self._queue_of(sequence.spec.client))

    # Claims

    def claim(self, sequence: Sequence) -> None:
        """A running sequence computes the ghosts on its way. Changes: what is offered there."""
        if sequence.claimed is not None or sequence.hook is None or not sequence.hook.is_ghost:
            return
        node = sequence.hook
        while node.parent is not None and node.parent.is_ghost:
            node = node.parent
        sequence.claimed = node
        self._claims.setdefault(node, set()).add(sequence)
        self._refresh_above(node)

    def release(self, sequence: Sequence) -> None:
        """It does not any more. Changes: what is offered there."""
        node = sequence.claimed
        if node is None:
            return
        sequence.claimed = None
        claimers = self._claims[node]
        claimers.discard(sequence)
        if not claimers:
            del self._claims[node]
            self._offer_above(node)

    # What the tree tells

    def filled(self, node: Node) -> None:
        """A ghost has KV now: it is a place. Changes: crowds, claims."""
        for claimer in self._claims.pop(node, ()):
            claimer.claimed = None
        for queue, crowd in tuple(self._crowds.get(node, {}).items()):
            if crowd.first is not None:
                self._on_place(queue, node)
        self._refresh_above(node)

    def emptied(self, node: Node) -> None:
        """A node lost its KV: its crowd stands in its parent's. Changes: crowds."""
        self._offer_above(node)
        for queue in tuple(self._crowds.get(node, {})):
            self._on_place(queue, node)

    def was_split(self, upper: Node, lower: Node) -> None:
        """A node was cut in two. Changes: the upper half has the lower in its crowd."""
        if not lower.is_ghost:
            return
        claimers = self._claims.pop(lower, None)
        if claimers is not None:
            self._claims[upper] = claimers
            for claimer in claimers:
                claimer.claimed = upper
        for queue, crowd in tuple(self._crowds.get(lower, {}).items()):
            if crowd.first is not None:
                self._push(upper, queue, crowd.first, lower)
                self._refresh(upper, queue)

    def was_joined(self, upper: Node, lower: Node) -> None:
        """A node went up into the one below it. Changes: the lower one takes its place."""
        self._crowds.pop(upper, None)
        claimers = self._claims.pop(upper, None)
        if claimers is not None:
            self._claims[lower] = claimers
            for claimer in claimers:
                claimer.claimed = lower
        if lower.is_ghost:
            self._offer_above(lower)

    def deserted(self, node: Node) -> None:
        """The last guest has left. Changes: the node has no crowd."""
        self._crowds.pop(node, None)

    def verify(self, offered: Iterable[Sequence]) -> None:
        """Raise LedgerBroken unless crowds hold just what is offered, and not claimed. Pure."""
        want: dict[tuple[Node, str], Rank] = {}
        for sequence in offered:
            queue = self._queue_of(sequence.spec.client)
            node: Node | None = _hook(sequence)
            while node is not None:
                held = want.get((node, queue))
                rank = sequence.order_rank
                want[node, queue] = rank if held is None else min(held, rank)
                if not node.is_ghost or node in self._claims:
                    break
                node = node.parent
        got = {
            (node, queue): crowd.first
            for node, crowds in self._crowds.items()
            for queue, crowd in crowds.items()
            if crowd.first is not None
        }
        if want != got:
            raise LedgerBroken(f"{len(got)} crowds have a first member, {len(want)} should")

    # Inside

    def _choose(self, node: Node, crowd: _Crowd) -> Sequence | Node:
        own = crowd.own[0] if crowd.own else None
        below = crowd.below[0] if crowd.below else None
        if own is None or below is None:
            return (own or below or _nothing())[2]
        if node.is_ghost and not self._by_rank and own[0][:2] == below[0][:2]:
            return own[2]
        return min(own, below)[2]

    def _crowd(self, node: Node, queue: str) -> _Crowd | None:
        return self._crowds.get(node, {}).get(queue)

    def _push(self, node: Node, queue: str, rank: Rank, source: Sequence | Node) -> None:
        crowd = self._crowds.setdefault(node, {}).setdefault(queue, _Crowd())
        self._serial += 1
        entries = crowd.own if isinstance(source, Sequence) else crowd.below
        heapq.heappush(entries, (rank, self._serial, source))
        if len(entries) > 64 + 4 * sum(node.guests.values()):
            true = {id(e[2]): e for e in entries if self._rank_now(node, queue, e[2]) == e[0]}
            entries[:] = sorted(true.values())

    def _refresh(self, node: Node, queue: str) -> None:
        """Set right who is first at a node, and all above it that this concerns."""
        while True:
            crowd = self._crowd(node, queue)
            if crowd is None:
                return
            before, first = crowd.first, self._true_first(node, queue, crowd)
            if first == before:
                return
            crowd.first = first
            if first is None:
                self._drop(node, queue)
            if not node.is_ghost:
                self._on_place(queue, node)
                return
            parent = node.parent
            if node in self._claims or parent is None:
                return
            if first is not None and (before is None or first < before):
                self._push(parent, queue, first, node)
            node = parent

    def _drop(self, node: Node, queue: str) -> None:
        """Forget a crowd without members; a node with guests may see any number of queues."""
        crowds = self._crowds[node]
        del crowds[queue]
        if not crowds:
            del self._crowds[node]

    def _true_first(self, node: Node, queue: str, crowd: _Crowd) -> Rank | None:
        """The least rank that holds. Changes: entries that do not hold any more are gone."""
        ranks = [
            entries[0][0]
            for entries in (crowd.own, crowd.below)
            if self._set_right(node, queue, entries)
        ]
        return min(ranks, default=None)

    def _set_right(self, node: Node, queue: str, entries: list[_Entry]) -> bool:
        """Whether any entry holds. Changes: if so, the top one does."""
        while entries:
            rank, serial, source = entries[0]
            now = self._rank_now(node, queue, source)
            if now == rank:
                return True
            if now is None:
                heapq.heappop(entries)
            else:
                heapq.heapreplace(entries, (now, serial, source))
        return False

    def _rank_now(self, node: Node, queue: str, source: Sequence | Node) -> Rank | None:
        if isinstance(source, Sequence):
            return source.order_rank if source.is_offered and source.hook is node else None
        if source.parent is not node or not source.is_ghost or source in self._claims:
            return None
        crowd = self._crowd(source, queue)
        return None if crowd is None else crowd.first

    def _offer_above(self, node: Node) -> None:
        """Put a ghost's first members into its parent's crowd."""
        parent = node.parent
        if parent is None or node in self._claims:
            return
        for queue, crowd in tuple(self._crowds.get(node, {}).items()):
            if crowd.first is not None:
                self._push(parent, queue, crowd.first, node)
                self._refresh(parent, queue)

    def _refresh_above(self, node: Node) -> None:
        if node.parent is not None:
            for queue in tuple(self._crowds.get(node, {})):
                self._refresh(node.parent, queue)


def _nothing() -> _Entry:
    raise LedgerBroken("a crowd with a first member is empty")


def _hook(sequence: Sequence) -> Node:
    if sequence.hook is None:
        raise LedgerBroken(f"sequence {sequence.sequence_id} does not hang in the tree")
    return sequence.hook
