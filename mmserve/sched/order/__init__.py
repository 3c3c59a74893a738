"""Who of those that wait starts next.

Owns the waiting line; the tree tells it what changes. Only `sched` may call it.

    client -> queue (rounds, credit: fairness) -> sweep -> place in the tree (crowds)
"""

from mmserve.sched.order.fairness import Fairness
from mmserve.sched.order.line import WaitingLine
from mmserve.sched.order.rules import RULES

__all__ = ["RULES", "Fairness", "WaitingLine"]
