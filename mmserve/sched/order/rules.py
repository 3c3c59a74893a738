"""In which order those that wait start: policies as data.

A sequence has a *rank*, which never changes while it waits; a place in the tree from which
sequences may start has a *key*: the rank of the first of them, with where the place is.
Smaller goes first.

    rank  (class and priority, sweep, size, arrival)
    key   (class and priority, sweep, what the policy makes of size and place, arrival)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmserve.core import Policy
from mmserve.radix import Node
from mmserve.sched.sequence import Sequence

__all__ = ["RULES", "Key", "OrderRule", "Rank"]

Rank = tuple[tuple[int, int], int, int, int]
Key = tuple[tuple[int, int], int, Any, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderRule:
    """One policy.

    Args:
        by_priority: whether the priority of a request counts.
        by_sweep: whether those of an earlier sweep go first, whatever their place.
        size: what of a sequence counts beside that.
        place: what size and place make; compared before arrival.
        is_weighed: whether that changes with others who come and go, so that all places are
            looked at for each start.
    """

    by_priority: bool
    by_sweep: bool
    size: Callable[[Sequence], int]
    place: Callable[[int, Node], Any]
    is_weighed: bool = False

    def rank(self, sequence: Sequence, client_class: int) -> Rank:
        """Rank of a sequence that begins to wait. Pure."""
        priority = sequence.spec.priority if self.by_priority else 0
        sweep = -1 if sequence.num_retractions else sequence.sweep
        return (
            (-client_class, -priority),
            sweep if self.by_sweep else 0,
            self.size(sequence),
            sequence.arrival,
        )

    def key(self, first: Rank, node: Node) -> Key:
        """Key of a place from which the sequence of rank `first` starts next. Pure."""
        return (first[0], first[1], self.place(first[2], node), first[3])


def _nothing(_sequence: Sequence) -> int:
    return 0


def _known(sequence: Sequence) -> int:
    return sequence.known


def _shuffled(sequence: Sequence) -> int:
    """A number that arrival fixes and nobody can foresee. Source: SplitMix64's multiplier."""
    return (sequence.arrival + 1) * 0x9E3779B97F4A7C15 % (1 << 61)


def _size_alone(size: int, _node: Node) -> int:
    return size


def _deepest(_size: int, node: Node) -> int:
    return -node.depth


def _least_missing(size: int, node: Node) -> int:
    return size - node.depth


def _heaviest(_size: int, node: Node) -> tuple[int, ...]:
    """Guests of each node on the way, heavier branches first, then what hangs at the end."""
    weights = [1]
    passed: Node | None = node
    while passed is not None:
        weights.append(-sum(passed.guests.values()))
        passed = passed.parent
    return tuple(reversed(weights))


_WITHIN_SWEEPS = {"by_priority": True, "by_sweep": True}
_BY_ARRIVAL = {"by_priority": False, "by_sweep": False}

RULES: dict[Policy, OrderRule] = {
    "longest-prefix": OrderRule(**_WITHIN_SWEEPS, size=_nothing, place=_deepest),
    "dfs-weight": OrderRule(**_WITHIN_SWEEPS, size=_nothing, place=_heaviest, is_weighed=True),
    "shortest-prefill": OrderRule(**_WITHIN_SWEEPS, size=_known, place=_least_missing),
    "priority": OrderRule(by_priority=True, by_sweep=False, size=_nothing, place=_size_alone),
    "fcfs": OrderRule(**_BY_ARRIVAL, size=_nothing, place=_size_alone),
    "random": OrderRule(**_BY_ARRIVAL, size=_shuffled, place=_size_alone),
}
"""`priority` is first come first served within a priority; `fcfs` and `random` know none."""
