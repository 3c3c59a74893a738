"""Who was served how much, kept from plans alone, without a look into the scheduler.

Units are those the scheduler charges: a prefill token is 1, a generated token `decode_cost`, a
patch encoded `patch_cost`. Work that several live requests wait for is split among them alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.simulated import Arrival, PlayedStep, digest_of
from mmserve.core import PlanRow, SchedConfig

__all__ = ["GapMeter", "ServiceAccount"]

Path = tuple[str, ...]
_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class _Open:
    """A request that has not ended; `end_of` are the ends of its segments, in tokens."""

    arrival: Arrival
    paths: tuple[Path, ...]
    ends: tuple[int, ...]
    num_passed: int = 0
    owed: float = 0.0
    """What its started work can still cost."""
    is_started: bool = False


class ServiceAccount:
    """Served units, waiting requests and owed units by client.

    Args:
        arrivals: requests by sequence id.
        config: whose costs are charged.
    """

    def __init__(self, arrivals: Sequence[Arrival], config: SchedConfig) -> None:
        self.clients = sorted({arrival.client for arrival in arrivals})
        self.served: dict[str, float] = dict.fromkeys(self.clients, 0.0)
        self.waiting: dict[str, int] = dict.fromkeys(self.clients, 0)
        self.owed: dict[str, float] = dict.fromkeys(self.clients, 0.0)
        self.peak_owed: dict[str, float] = dict.fromkeys(self.clients, 0.0)
        """Most that started work of a client could still cost, over all steps."""
        self.waits_s: dict[str, list[float]] = defaultdict(list)
        """From arrival to the first step, of the requests that have started."""
        self.first_tokens_s: dict[str, list[float]] = defaultdict(list)
        """From arrival to the first token, of the requests that have got one."""
        self.num_prompt_computed = 0
        self._arrivals = arrivals
        self._config = config
        self._open: dict[int, _Open] = {}
        self._needs: dict[Path, Counter[str]] = defaultdict(Counter)
        """By prefix of segments: requests of each client that have still to pass its end."""
        self._wants: dict[bytes, Counter[str]] = defaultdict(Counter)
        """By picture: requests of each client that have still to pass its end."""
        self._patches: dict[bytes, int] = {}

    def take(self, step: PlayedStep) -> None:
        """Book one step. Changes: all accounts."""
        for sequence_id in step.arrived:
            self._enter(sequence_id)
        for row in step.plan.rows:
            request = self._open[row.sequence_id]
            if not request.is_started:
                self._start(request, row, step.started_s)
        for client, owed in self.owed.items():
            self.peak_owed[client] = max(self.peak_owed[client], owed)
        for item in step.plan.encode:
            units = self._config.patch_cost * self._patches[item.digest]
            self._split(self._wants.get(item.digest), units, self._user_of(step, item.digest))
        for row in step.plan.rows:
            self._charge_row(self._open[row.sequence_id], row)
        for row in step.plan.rows:
            self._pass(self._open[row.sequence_id], row, step.ended_s)
        for update in step.updates:
            if update.finish is not None:
                request = self._open.pop(update.sequence_id)
                self.owed[request.arrival.client] -= request.owed

    def _enter(self, sequence_id: int) -> None:
        arrival = self._arrivals[sequence_id]
        names = [segment.name for segment in arrival.segments]
        paths = tuple(tuple(names[: at + 1]) for at in range(len(names)))
        ends = np.cumsum([segment.num_tokens for segment in arrival.segments])
        self._open[sequence_id] = _Open(arrival, paths, tuple(map(int, ends)))
        self.waiting[arrival.client] += 1
        for segment, path in zip(arrival.segments, paths, strict=True):
            self._needs[path][arrival.client] += 1
            if segment.num_patches:
                self._wants[digest_of(segment)][arrival.client] += 1
                self._patches[digest_of(segment)] = segment.num_patches

    def _start(self, request: _Open, row: PlanRow, now_s: float) -> None:
        arrival = request.arrival
        request.is_started = True
        self.waiting[arrival.client] -= 1
        self.waits_s[arrival.client].append(now_s - arrival.at_s)
        request.owed = arrival.num_prompt - row.start
        request.owed += self._config.decode_cost * arrival.num_answer
        self.owed[arrival.client] += request.owed

    def _charge_row(self, request: _Open, row: PlanRow) -> None:
        arrival = request.arrival
        start, stop = row.start, row.start + len(row.token_ids)
        first = 0
        for path, end in zip(request.paths, request.ends, strict=True):
            num_tokens = min(stop, end) - max(start, first)
            if num_tokens > 0:
                self._split(self._needs.get(path), num_tokens, arrival.client)
                self.num_prompt_computed += num_tokens
            first = end
        paid = float(max(0, min(stop, arrival.num_prompt) - start))
        if row.sampling is not None:
            self.served[arrival.client] += self._config.decode_cost
            paid += self._config.decode_cost
        request.owed -= paid
        self.owed[arrival.client] -= paid

    def _split(self, sharers: Counter[str] | None, units: float, doer: str) -> None:
        """Charge those who wait for the work; if nobody does, since it is redone, the doer."""
        sharers = sharers or Counter((doer,))
        total = sharers.total()
        for client, count in sharers.items():
            self.served[client] += units * count / total

    def _user_of(self, step: PlayedStep, digest: bytes) -> str:
        """The client of the first row that uses a picture encoded in this step."""
        return next(
            self._open[row.sequence_id].arrival.client
            for row in step.plan.rows
            if any(use.digest == digest for use in row.features)
        )

    def _pass(self, request: _Open, row: PlanRow, now_s: float) -> None:
        """Prefixes that end in or before a row are computed now for its request."""
        stop = row.start + len(row.token_ids)
        if row.sampling is not None and row.sampling.position == 0:
            wait_s = now_s - request.arrival.at_s
            self.first_tokens_s[request.arrival.client].append(wait_s)
        while request.num_passed < len(request.ends):
            if request.ends[request.num_passed] > stop:
                return
            client = request.arrival.client
            segment = request.arrival.segments[request.num_passed]
            _remove(self._needs, request.paths[request.num_passed], client)
            if segment.num_patches:
                _remove(self._wants, digest_of(segment), client)
            request.num_passed += 1


def _remove(table: dict[_Key, Counter[str]], key: _Key, client: str) -> None:
    counter = table[key]
    counter[client] -= 1
    if not counter[client]:
        del counter[client]
    if not counter:
        del table[key]


class GapMeter:
    """How far apart clients are served, per weight, while both have requests waiting.

    Args:
        weights: by client, in one order for all.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        count = len(weights)
        self._weights = np.array(weights, dtype=np.float64)
        self._before = np.zeros(count)
        self._both = np.zeros((count, count), dtype=np.bool_)
        self._base = np.zeros((count, count))
        self._highest = np.zeros((count, count))
        self.since_start = 0.0
        """Most difference, counted from when the two began to wait together."""
        self.any_interval = 0.0
        """Most difference within any interval in which both waited all the time."""

    def take(self, served: Sequence[float], is_waiting: Sequence[bool]) -> None:
        """After a step: served units of each client, and who had requests left waiting.

        Changes: the two measures.
        """
        now = np.array(served) / self._weights
        waits = np.array(is_waiting, dtype=np.bool_)
        both = waits[:, None] & waits[None, :]
        self._open_pairs(both & ~self._both)
        self._both = both
        apart = np.where(both, _differences(now) - self._base, 0.0)
        self._highest = np.where(both, np.maximum(self._highest, apart), 0.0)
        self.since_start = max(self.since_start, float(np.abs(apart).max()))
        # The lowest of (i, j) is minus the highest of (j, i).
        self.any_interval = max(
            self.any_interval, float((self._highest + self._highest.T).max())
        )
        self._before = now

    def _open_pairs(self, opened: NDArray[np.bool_]) -> None:
        self._base = np.where(opened, _differences(self._before), self._base)
        self._highest = np.where(opened, 0.0, self._highest)


def _differences(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[:, None] - values[None, :]
