"""Counters and gauges of an engine under their Prometheus names (without the prefix)."""

from __future__ import annotations

from collections.abc import Mapping

from mmserve.sched import SchedCounts
from mmserve.vision import MediaCounters

__all__ = ["engine_counters"]


def engine_counters(
    counts: SchedCounts, media: MediaCounters | None, ends: Mapping[str, int]
) -> dict[str, float]:
    """One flat mapping; names in `_total` only grow, others are gauges. Pure.

    `slots` = `slots_free` + `slots_cached` + `slots_held` at all times.
    """
    named: dict[str, float] = {
        "slots": counts.slots_total,
        "slots_free": counts.slots_free,
        "slots_cached": counts.slots_cached,
        "slots_held": counts.slots_held,
        "feature_tokens": counts.feature_tokens,
        "running": counts.running,
        "waiting": counts.waiting,
        "steps_total": counts.steps,
        "tokens_computed_total": counts.tokens_computed,
        "prompt_tokens_computed_total": counts.prompt_tokens_computed,
        "prompt_tokens_cached_total": counts.cached_tokens,
        "generated_tokens_total": counts.generated_tokens,
        "encoded_items_total": counts.encoded_items,
        "retractions_total": counts.retractions,
    }
    for reason, number in ends.items():
        named[f'finished_total{{reason="{reason}"}}'] = number
    if media is not None:
        named["media_fetches_total"] = media.num_fetches
        named["media_decodes_total"] = media.num_pictures + media.num_clip_passes
        named["media_preprocesses_total"] = media.num_preprocesses
    return named
