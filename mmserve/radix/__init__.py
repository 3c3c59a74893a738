"""Which KV slots already hold this prefix.

Owns the radix tree of KV and the pool of slots, as plain numbers: no tensor is touched here.
Only `sched` may call it (and `testing`).

    prompt -> prefix_keys -> tree.match -> tree.pin -> slots to read
                                  |
      root -- [system prompt] -- [picture #3, 196 tokens] -+- [question 1]
                                                           +- (question 2, waiting: no KV yet)
"""

from mmserve.radix.drawing import draw
from mmserve.radix.eviction import Worth, worth_of
from mmserve.radix.interner import Interner, media_parts, prefix_keys
from mmserve.radix.match import Insertion, Match
from mmserve.radix.node import Node
from mmserve.radix.outline import outline
from mmserve.radix.slots import SlotPool
from mmserve.radix.tree import RadixTree
from mmserve.radix.watch import NodeWatcher

__all__ = [
    "Insertion",
    "Interner",
    "Match",
    "Node",
    "NodeWatcher",
    "RadixTree",
    "SlotPool",
    "Worth",
    "draw",
    "media_parts",
    "outline",
    "prefix_keys",
    "worth_of",
]
