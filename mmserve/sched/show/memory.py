"""The queue and memory as plain values, beside the tree that programs draw."""

from __future__ import annotations

from typing import Any

from mmserve.sched.updates import SchedCounts
from mmserve.vision import FeatureLedger

__all__ = ["told_memory"]


def told_memory(counts: SchedCounts, features: FeatureLedger) -> dict[str, Any]:
    """Sequences that run and wait, slots of KV by use, tokens of encoded media. Pure."""
    return {
        "queue": {"running": counts.running, "waiting": counts.waiting},
        "slots": {
            "all": counts.slots_total,
            "held": counts.slots_held,
            "cached": counts.slots_cached,
            "free": counts.slots_free,
        },
        "features": {
            "all": features.capacity_tokens,
            "pinned": features.num_pinned_tokens,
            "kept": features.num_tokens - features.num_pinned_tokens,
            "num_items": len(features),
        },
    }
