"""Who runs in the next step, and for how many tokens.

Owns every Sequence, the KV ledger (through `radix`) and the ledger of features; decides, and
never touches a tensor. Only `engine` may call it, from one thread (and `testing`).

    add -> [waiting] -> plan -> [running: computed catches up with known] -> commit -> updates
              ^                        |
              +------ retracted -------+

There is no prefill and no decode phase: a step computes some missing tokens of some sequences.
"""

from mmserve.sched.books.accounts import Waits
from mmserve.sched.books.recent import RecentShare
from mmserve.sched.books.report import SchedReport
from mmserve.sched.foresight import is_foreseen
from mmserve.sched.scheduler import Scheduler
from mmserve.sched.sequence import SequenceSpec
from mmserve.sched.updates import SchedCounts, SequenceUpdate

__all__ = [
    "RecentShare",
    "SchedCounts",
    "SchedReport",
    "Scheduler",
    "SequenceSpec",
    "SequenceUpdate",
    "Waits",
    "is_foreseen",
]
