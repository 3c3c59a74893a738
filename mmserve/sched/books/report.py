"""What the scheduler tells of its work beyond the counts: cache, clients, and the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmserve.sched.books.accounts import Waits
from mmserve.sched.books.recent import RecentShare

__all__ = ["SchedReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedReport:
    """Accounts as they stand; all sums are since the start unless they say otherwise.

    Args:
        prompt_tokens: tokens of ended requests by (kind, outcome), see `core.CacheUse`.
        recent: the latest requests' hits beside their optimum.
        waits: queue waits by client.
        service: service charged by client, in prefill tokens.
        running: sequences that run now by client; none that has no sequence.
        waiting: sequences that wait now by client; none that has no sequence.
    """

    prompt_tokens: Mapping[tuple[str, str], int] = field(default_factory=dict)
    recent: RecentShare = field(default_factory=RecentShare)
    waits: Mapping[str, Waits] = field(default_factory=dict)
    service: Mapping[str, float] = field(default_factory=dict)
    running: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)

    @property
    def hit_rate(self) -> float:
        """Share of all prompt tokens that were hits; 0 before the first. Pure."""
        num_hits = sum(
            num for (_, outcome), num in self.prompt_tokens.items() if outcome == "hit"
        )
        return num_hits / max(1, sum(self.prompt_tokens.values()))
