"""The sequences that wait, hung into the tree, and who of them starts next.

add -> hung, offered -> next -> admit            hung still, while its prompt is computed
          ^     |         +---> set_aside .. restore       refused in this step only
          |     +-> park (no pixels yet) -+
          +------------- unpark ----------+
"""

from __future__ import annotations

from collections.abc import Iterator

from mmserve.core import LedgerBroken, SchedConfig
from mmserve.sched.memory import KvMemory
from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.queues import Queues
from mmserve.sched.order.rules import RULES
from mmserve.sched.sequence import Sequence

__all__ = ["WaitingLine"]


class WaitingLine:
    """Everybody who holds no KV, in the order of arrival, and their places in the tree."""

    def __init__(self, config: SchedConfig, memory: KvMemory, fairness: Fairness) -> None:
        self._fairness = fairness
        self._rule = RULES[config.policy]
        self._memory = memory
        self._queues = Queues(self._rule, fairness, config.max_sweep_joiners)
        self._waiting: dict[int, Sequence] = {}
        self._num_by_client: dict[str, int] = {}
        self._aside: list[Sequence] = []
        memory.tree.watcher = self._queues.order

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    def num_by_client(self) -> dict[str, int]:
        """How many wait, by client; a copy, without zeros. Pure. Another thread may ask."""
        return self._num_by_client.copy()

    # They come

    def add(self, sequence: Sequence) -> None:
        """A newcomer. Changes: the line, the tree, its client's credit."""
        self._fairness.arrive(sequence.spec.client)
        self._memory.hang(sequence)
        self._queues.enter(sequence, self._memory.mark_above(sequence))
        self._offer(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """A retracted sequence waits again, before its client's newcomers.

        Changes: as `add`.
        """
        self._queues.order.release(sequence)
        self._memory.unhang(sequence)
        self._memory.hang(sequence)
        self._queues.enter_again(sequence)
        self._offer(sequence)

    # They wait

    def next(self) -> Sequence | None:
        """Who starts next; None if nobody may. Changes: rounds and sweeps."""
        return self._queues.pick(may_advance=not self._aside)

    def set_aside(self, sequence: Sequence) -> None:
        """Pass somebody over in this step. Changes: `next` names others, until `restore`."""
        self._queues.set_aside(sequence)
        self._aside.append(sequence)

    def restore(self) -> None:
        """The step is planned: those set aside may start again. Changes: what `next` names."""
        aside, self._aside = self._aside, []
        for sequence in aside:
            if sequence.sequence_id in self._waiting:
                self._queues.restore(sequence)

    def park(self, sequence: Sequence) -> None:
        """It waits for pixels. Changes: `next` does not name it until `unpark`."""
        self._queues.order.withdraw(sequence)

    def unpark(self, sequence: Sequence) -> None:
        """Pixels have come, or never will. Changes: it may start, if it waits."""
        if sequence.sequence_id in self._waiting and not sequence.is_offered:
            self._queues.order.offer(sequence)

    # They go

    def admit(self, sequence: Sequence) -> None:
        """It runs now; it hangs on until its prompt is planned. Changes: the line."""
        self._queues.order.withdraw(sequence)
        self._leave(sequence)
        self._queues.start(sequence)

    def keep_claim(self, sequence: Sequence) -> None:
        """A running sequence has had a row: it claims what it computes next, or is done.

        Changes: claims; a sequence without prompt tokens to share hangs no more.
        """
        if sequence.hook is None:
            return
        if sequence.hook.is_ghost:
            self._queues.order.claim(sequence)
        else:
            self.take_down(sequence)

    def remove(self, sequence: Sequence) -> None:
        """It waits no more, and does not run. Changes: the line, the tree."""
        self._queues.order.withdraw(sequence)
        self._leave(sequence)
        self.take_down(sequence)

    def take_down(self, sequence: Sequence) -> None:
        """It hangs no more. Changes: the tree, claims."""
        self._queues.order.release(sequence)
        self._memory.unhang(sequence)

    def verify(self) -> None:
        """Raise LedgerBroken unless the order holds exactly those who may start. Pure."""
        self._queues.order.verify(seq for seq in self if seq.is_offered)
        if any(seq.hook is None for seq in self):
            raise LedgerBroken("a waiting sequence does not hang in the tree")

    def _offer(self, sequence: Sequence) -> None:
        client_class = self._fairness.class_of(sequence.spec.client)
        sequence.order_rank = self._rule.rank(sequence, client_class)
        self._waiting[sequence.sequence_id] = sequence
        client = sequence.spec.client
        self._num_by_client[client] = self._num_by_client.get(client, 0) + 1
        self._queues.order.offer(sequence)

    def _leave(self, sequence: Sequence) -> None:
        self._queues.leave(sequence)
        del self._waiting[sequence.sequence_id]
        client = sequence.spec.client
        self._num_by_client[client] -= 1
        if not self._num_by_client[client]:
            del self._num_by_client[client]
