"""Counters and gauges of an engine under their Prometheus names (without the prefix).

What each means is told in `server/metrics_help.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import get_args

from mmserve.constrained import CompileCounts
from mmserve.core import CacheKind, CacheOutcome, SchedConfig, series_key
from mmserve.sched import SchedCounts, SchedReport
from mmserve.vision import MediaCounters

__all__ = ["engine_counters", "grammar_counters", "sched_counters", "shown_client"]

_MAX_NAME = 64
_KEPT = 48
_MAX_NEWCOMERS = 128
"""Clients told of before their first start; names are cheap to make up."""
_QUANTILES = {"0.5": "p50_ms", "0.99": "p99_ms"}


def engine_counters(
    counts: SchedCounts,
    media: MediaCounters | None,
    ends: Mapping[str, int],
    feature_bytes: int,
) -> dict[str, float]:
    """One flat mapping; names in `_total` only grow, others are gauges. Pure.

    `slots` = `slots_free` + `slots_cached` + `slots_held` at all times. The argument
    `feature_bytes` is of one token.
    """
    named: dict[str, float] = {
        "slots": counts.slots_total,
        "slots_free": counts.slots_free,
        "slots_cached": counts.slots_cached,
        "slots_held": counts.slots_held,
        "feature_tokens": counts.feature_tokens,
        "feature_bytes": counts.feature_tokens * feature_bytes,
        "running": counts.running,
        "waiting": counts.waiting,
        "steps_total": counts.steps,
        "tokens_computed_total": counts.tokens_computed,
        "prompt_tokens_computed_total": counts.prompt_tokens_computed,
        "prompt_tokens_cached_total": counts.cached_tokens,
        "generated_tokens_total": counts.generated_tokens,
        "forced_tokens_total": counts.forced_tokens,
        "replaced_tokens_total": counts.replaced_tokens,
        "jumps_total": counts.jumps,
        "encoded_items_total": counts.encoded_items,
        "early_items_total": counts.early_items,
        "early_items_used_total": counts.early_items_used,
        "retractions_total": counts.retractions,
    }
    for reason, number in ends.items():
        named[series_key("finished_total", reason=reason)] = number
    if media is not None:
        named["media_fetches_total"] = media.num_fetches
        named["media_decodes_total"] = media.num_pictures + media.num_clip_passes
        named["media_preprocesses_total"] = media.num_preprocesses
        named["media_prepared_total"] = media.num_prepared
    return named


def grammar_counters(counts: CompileCounts) -> dict[str, float]:
    """The grammars' accounts in the same form; every reason is there. Pure."""
    named: dict[str, float] = {
        "grammars": counts.num_kept,
        "grammar_bytes": counts.kept_bytes,
        "grammar_waiting": counts.num_waiting,
        "grammars_compiled_total": counts.num_compiled,
        "grammar_hits_total": counts.num_hits,
        "grammar_compile_ms_total": round(counts.compile_ms, 3),
    }
    for reason, number in counts.refused.items():
        named[series_key("grammar_refusals_total", reason=reason)] = number
    return named


def sched_counters(report: SchedReport, config: SchedConfig) -> dict[str, float]:
    """The scheduler's accounts in the same form; every kind and outcome is there. Pure."""
    named: dict[str, float] = {
        series_key(
            "sched_info",
            policy=config.policy,
            eviction=config.eviction,
            fairness="on" if config.fairness else "off",
        ): 1
    }
    for kind in get_args(CacheKind):
        for outcome in get_args(CacheOutcome):
            key = series_key("prompt_tokens_total", kind=kind, outcome=outcome)
            named[key] = report.prompt_tokens.get((kind, outcome), 0)
    named["recent_prompt_tokens"] = report.recent.num_tokens
    named["recent_hit_tokens"] = report.recent.hits
    named["recent_optimal_hit_tokens"] = report.recent.optimal_hits
    return named | _client_counters(report)


def _client_counters(report: SchedReport) -> dict[str, float]:
    named: dict[str, float] = {}
    present = (name for name in (*report.running, *report.waiting) if name not in report.waits)
    for client in (*report.waits, *islice(dict.fromkeys(present), _MAX_NEWCOMERS)):
        shown = shown_client(client)
        waits = report.waits.get(client)
        if waits is not None:
            for share, name in _QUANTILES.items():
                key = series_key("client_queue_wait_ms", client=shown, quantile=share)
                named[key] = round(getattr(waits, name), 3)
        started = 0 if waits is None else waits.count
        named[series_key("client_started_total", client=shown)] = started
        service = report.service.get(client, 0.0)
        named[series_key("client_service_tokens_total", client=shown)] = service
        named[series_key("client_running", client=shown)] = report.running.get(client, 0)
        named[series_key("client_waiting", client=shown)] = report.waiting.get(client, 0)
    return named


def shown_client(client: str) -> str:
    """A client's name as a label: printable, at most 64 characters, and still its own. Pure."""
    if len(client) <= _MAX_NAME and client.isprintable():
        return client
    name = "".join(sign if sign.isprintable() else "?" for sign in client)
    digest = hashlib.sha256(client.encode("utf-8", "backslashreplace")).hexdigest()
    return f"{name[:_KEPT]}~{digest[:8]}"
