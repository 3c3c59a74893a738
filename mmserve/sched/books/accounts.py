"""Books kept beside the ledgers: what prompts found in the cache, and how long clients waited.

They only add up what others decide. One thread writes them; another may read amid a change, for
which each keeps its numbers in dictionaries and rings that are copied before they are read.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmserve.core import Usage

__all__ = ["CacheAccount", "WaitAccount", "Waits", "quantile"]

_NUM_WAITS = 512
"""Latest waits of a client that its quantiles are of."""
_MAX_CLIENTS = 128


class CacheAccount:
    """Prompt tokens of ended requests by kind and outcome. Mutable."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str], int] = {}

    def note(self, usage: Usage) -> None:
        """Add an ended request. Changes: the sums."""
        for use in usage.cache:
            pair = (use.kind, use.outcome)
            self._sums[pair] = self._sums.get(pair, 0) + use.num_tokens

    def totals(self) -> dict[tuple[str, str], int]:
        """Tokens so far by (kind, outcome), see `core.CacheUse`; none that are 0. Pure."""
        return self._sums.copy()


@dataclass(frozen=True, slots=True)
class Waits:
    """A client's waits from arrival to the first step; quantiles are those of the latest."""

    count: int
    p50_ms: float
    p99_ms: float


@dataclass(slots=True)
class _Ring:
    count: int = 0
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_WAITS))


class WaitAccount:
    """How long requests waited, by client. Mutable.

    Args:
        max_clients: whoever was inactive for longest is forgotten when there are more, so that
            a caller who makes up names costs nothing.
    """

    def __init__(self, max_clients: int = _MAX_CLIENTS) -> None:
        self._max_clients = max_clients
        self._rings: OrderedDict[str, _Ring] = OrderedDict()

    def note(self, client: str, wait_ms: float) -> None:
        """Add a wait that has ended. Changes: the client's ring, and who is the latest."""
        ring = self._rings.get(client)
        if ring is None:
            ring = self._rings[client] = _Ring()
            if len(self._rings) > self._max_clients:
                self._rings.popitem(last=False)
        else:
            self._rings.move_to_end(client)
        ring.count += 1
        ring.latest.append(wait_ms)

    def quantiles(self) -> dict[str, Waits]:
        """Waits of every client remembered. Pure. Cost: sorts at most 512 numbers a client."""
        found = {}
        for client, ring in self._rings.copy().items():
            waits = sorted(ring.latest.copy())
            found[client] = Waits(ring.count, quantile(waits, 0.5), quantile(waits, 0.99))
        return found


def quantile(ascending: Sequence[float], share: float) -> float:
    """The least of these numbers that `share` of them do not exceed; 0 for none. Pure."""
    if not ascending:
        return 0.0
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]
