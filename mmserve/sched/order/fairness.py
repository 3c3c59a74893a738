"""What clients have been served, and who may start sequences.

    round r, quantum Q:  a client may start sequences while  served / weight < r * Q
    the round goes on    when nobody who may start has anything to start

Service is counted in prefill tokens: one for each prompt token computed, more for a generated
token, a patch encoded, a millisecond of media decoding. Work that several wait for is split
among them the first time it is done. A queue that comes back has at most one quantum of credit,
and only so many do in one round, so that a round ends however many come.

Bound: for two clients with work to start at all times, |served_i / w_i - served_j / w_j| is at
most Q + U, where U is the most that what one of them has running can still cost, and its part
of work that others do. The proof is in `docs/concepts/order-and-fairness.md`.

Source: Efficient fair queuing using deficit round robin (Shreedhar and Varghese, 1995), paid
afterwards; Fairness in serving large language models (Sheng, 2024) for the measure of service.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmserve.core import SchedConfig

__all__ = ["Fairness"]

_FIRST_SHARE = 0.25
"""Share of a quantum for which a queue that came in goes before the others."""
_FIRST_STARTS = 2
"""Sequences after whose start it does so no more, however little they cost."""
_NUM_NEW = 8
"""Queues that may come into a round, however few clients there are; else as many as those."""
_MAX_IDLE = 4096
"""Clients without work that are remembered."""


@dataclass(slots=True)
class _Round:
    """A round of a class: queues that came in during it, and how many of them get credit.

    It begins with the first start in it; whoever is there by then has the same right.
    """

    number: int = 1
    num_room: int = _NUM_NEW
    num_new: int = 0
    has_begun: bool = False

    @property
    def has_room(self) -> bool:
        """Whether a queue that comes in now gets credit. Pure."""
        return not self.has_begun or self.num_new < self.num_room


class Fairness:
    """Service of every client, and the round of every class of clients.

    What decides a queue is service counted from where a client came in, see `lift`; what it
    was charged is kept beside that.
    """

    def __init__(self, config: SchedConfig) -> None:
        self.is_on = config.fairness
        self._quantum = config.quantum_tokens
        self._weights = dict(config.client_weights)
        self._classes = dict(config.client_priorities)
        self._served: dict[str, float] = {}
        self._charged: dict[str, float] = {}
        self._num_live: dict[str, int] = {}
        self._rounds: dict[int, _Round] = {}
        self._num_started: dict[str, int] = {}
        self._came_in: dict[str, int] = {}
        """Round in which a queue last lost credit, having been away."""

    # Questions

    def queue_of(self, client: str) -> str:
        """The queue a client's sequences wait in: its own, or everybody's. Pure."""
        return client if self.is_on else ""

    def class_of(self, client: str) -> int:
        """Higher classes go first. Pure."""
        return self._classes.get(client, 0)

    def level(self, queue: str) -> float:
        """Service by weight. Pure."""
        return self._served.get(queue, 0.0) / self._weight(queue)

    def may_start(self, queue: str) -> bool:
        """Whether a queue has credit left in the round of its class. Pure."""
        return not self.is_on or self.level(queue) < self._limit(self.class_of(queue))

    def phase(self, queue: str) -> int:
        """0 for a queue that came in after this round began and has had little, else 1. Pure.

        Phase 0 goes first: a client that asks now and then hardly waits.
        Source: The FlowQueue-CoDel packet scheduler (RFC 8290), section 4.2, where new flows go
        first for a quantum; ours is new only if it has not used its share of the last round.
        """
        client_class = self.class_of(queue)
        if self._came_in.get(queue) != self._round(client_class):
            return 1
        had = self.level(queue) - self._limit(client_class) + self._quantum
        is_many = self._num_started.get(queue, 0) >= _FIRST_STARTS
        return int(is_many or had >= _FIRST_SHARE * self._quantum)

    def served(self) -> dict[str, float]:
        """Service that decides queues, by client, in prefill tokens. A copy. Pure."""
        return self._served.copy()

    def charged(self) -> dict[str, float]:
        """Service charged to the clients remembered, in prefill tokens. A copy. Pure."""
        return self._charged.copy()

    # Changes

    def start(self, queue: str) -> None:
        """A sequence of a queue begins to run. Changes: how many did since it came in."""
        self._rounds.setdefault(self.class_of(queue), _Round()).has_begun = True
        self._num_started[queue] = self._num_started.get(queue, 0) + 1

    def arrive(self, client: str) -> None:
        """A sequence of a client has come. Changes: how many it has."""
        num_live = self._num_live.get(client, 0)
        self._num_live[client] = num_live + 1
        if not num_live:
            self._served[client] = self._served.pop(client, 0.0)

    def lift(self, queue: str) -> None:
        """A queue without anything to start has got something. Changes: old credit is lost.

        It has the credit of this round, or, if many have come in during it, none until the
        next: else whoever has waited since the round began might wait for ever.
        """
        if not self.is_on:
            return
        client_class = self.class_of(queue)
        round_ = self._rounds.setdefault(client_class, _Round())
        is_known = queue in self._came_in and self.level(queue) >= self._quantum * (
            round_.number - 1
        )
        if is_known:
            return
        is_new = round_.has_room and round_.has_begun
        self._served[queue] = max(self._served.get(queue, 0.0), self._least(queue))
        self._came_in[queue] = round_.number if is_new else 0
        self._num_started[queue] = 0
        round_.num_new += 1

    def leave(self, client: str) -> None:
        """A sequence of a client has ended. Changes: idle clients may be forgotten."""
        self._num_live[client] -= 1
        if not self._num_live[client]:
            del self._num_live[client]
            if len(self._served) - len(self._num_live) > _MAX_IDLE:
                self._forget_idle()

    def charge(self, client: str, cost: float) -> None:
        """Count service. Changes: the client's."""
        self._served[client] = self._served.get(client, 0.0) + cost
        self._charged[client] = self._charged.get(client, 0.0) + cost

    def share(self, shares: Mapping[str, int], cost: float) -> None:
        """Count service of work that sequences share equally. Changes: each client's."""
        each = cost / sum(shares.values())
        for client, count in shares.items():
            self.charge(client, each * count)

    def advance(self, queue: str) -> None:
        """Go on to the first round in which a queue has credit. Changes: its class's round."""
        number = int(self.level(queue)) // self._quantum + 1
        client_class = self.class_of(queue)
        if number > self._round(client_class):
            num_room = max(_NUM_NEW, len(self._num_live))
            self._rounds[client_class] = _Round(number, num_room)

    def _round(self, client_class: int) -> int:
        round_ = self._rounds.get(client_class)
        return 1 if round_ is None else round_.number

    def _limit(self, client_class: int) -> int:
        """Exact, so that a round more is always more than any level it was meant for."""
        return self._round(client_class) * self._quantum

    def _weight(self, client: str) -> float:
        return self._weights.get(client, 1.0)

    def _least(self, queue: str) -> float:
        """What a queue that comes in now has been served at least; less is lifted to it."""
        round_ = self._rounds.get(self.class_of(queue), _Round())
        return (round_.number - round_.has_room) * self._quantum * self._weight(queue)

    def _forget_idle(self) -> None:
        """Forget some of those without work who would come back no better for it."""
        idle = [
            client
            for client, served in self._served.items()
            if client not in self._num_live
            and (not self.is_on or served <= self._least(client))
        ]
        for client in idle[: _MAX_IDLE // 2]:
            del self._served[client]
            self._charged.pop(client, None)
            self._came_in.pop(client, None)
            self._num_started.pop(client, None)
