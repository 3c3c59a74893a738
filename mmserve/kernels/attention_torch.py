"""Paged attention in plain torch: the reference of the faster twins, and what runs anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import AttentionPlan, KvTensors, KvWriter, QueryRow, Turn
from mmserve.kernels.elementwise import rotary
from mmserve.kernels.reading import Segment, StepReading, plan_reading

__all__ = ["TorchAttention", "TorchKvWriter"]

MAX_SCORES = 1 << 22
"""Most scores held at once by one product (16 MiB of float32)."""
_NOBODY = -1e30
"""Stands for the log-sum-exp of no score, where a difference to it is taken."""


class TorchAttention:
    """Attention backend made of torch calls: one pair of products a segment."""

    def plan(
        self,
        kv: KvTensors,
        rows: Sequence[QueryRow],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> AttentionPlan:
        """See `AttentionBackend.plan`. Pure."""
        return _TorchPlan(kv, plan_reading(rows, window), softcap)

    def writer(self, kv: KvTensors, slots: NDArray[np.int64]) -> KvWriter:
        """See `AttentionBackend.writer`. Pure."""
        return TorchKvWriter(kv, slots)


class TorchKvWriter:
    """Writes the new tokens' KV of one step; runs of slots are copied without an index.

    Args:
        slots: int64 [T], where each token's KV goes.
    """

    __slots__ = ("_index", "_kv", "_pieces")

    def __init__(self, kv: KvTensors, slots: NDArray[np.int64]) -> None:
        self._kv = kv
        breaks = np.flatnonzero(np.diff(slots) != 1) + 1
        bounds = [0, *breaks.tolist(), len(slots)]
        self._pieces = [
            (first, end, int(slots[first])) for first, end in itertools.pairwise(bounds)
        ]
        self._index = torch.from_numpy(slots).to(kv.keys.device)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `KvWriter.write`. Changes: the store."""
        for store, new in ((self._kv.keys[layer], keys), (self._kv.values[layer], values)):
            if len(self._pieces) * 16 > len(self._index):
                store.index_copy_(1, self._index, new.transpose(0, 1))
                continue
            for first, end, slot in self._pieces:
                store[:, slot : slot + end - first] = new[first:end].transpose(0, 1)

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `KvWriter.turn_and_write`. Changes: the store."""
        num_groups = self._kv.keys.shape[1]
        num_heads = fused.shape[1] - 2 * num_groups
        turned, values = fused.split([num_heads + num_groups, num_groups], dim=1)
        if turn is not None:
            turned = rotary(turned, *turn)
        queries, keys = turned.split([num_heads, num_groups], dim=1)
        self.write(layer, keys, values)
        return queries


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A segment on the device.

    `hidden` is bool [n, L], what a query of the segment does not see, or None if all see all.
    """

    level: int
    places: slice
    slots: slice | Tensor
    hidden: Tensor | None


class _TorchPlan:
    """See `AttentionPlan`. What a query reads of each segment is joined by log-sum-exp."""

    def __init__(self, kv: KvTensors, reading: StepReading, softcap: float | None) -> None:
        self._kv = kv
        self._softcap = softcap
        self._depth = reading.depth
        self._parts = [_part(segment, reading, kv.keys.device) for segment in reading.segments]
        is_sorted = bool((np.diff(reading.order) > 0).all())
        self._order = None if is_sorted else torch.from_numpy(reading.order).to(kv.keys.device)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `AttentionPlan.attend`. Pure."""
        num_tokens, num_heads, size = queries.shape
        num_groups = self._kv.keys.shape[1]
        placed = queries if self._order is None else queries[self._order]
        grouped = placed.view(num_tokens, num_groups, -1, size).transpose(0, 1)
        out = grouped.new_zeros((self._depth, *grouped.shape))
        shape = (self._depth, *grouped.shape[:3])
        lse = torch.full(shape, -torch.inf, device=queries.device)
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        for part in self._parts:
            level, places = part.level, part.places
            out[level, :, places], lse[level, :, places] = self._read(
                grouped[:, places], keys[:, part.slots], values[:, part.slots], part.hidden
            )
        joined = _joined(out, lse).transpose(0, 1).reshape(num_tokens, num_heads, size)
        if self._order is None:
            return joined
        return torch.empty_like(joined).index_copy_(0, self._order, joined)

    def _read(
        self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Outputs [G, n, h, D] and log-sum-exps [G, n, h] of queries on [G, L, D]. Pure."""
        num_groups, num_queries, heads, _ = queries.shape
        step = max(1, MAX_SCORES // (num_groups * heads * keys.shape[1]))
        parts = [
            self._read_some(
                queries[:, first : first + step],
                keys,
                values,
                None if hidden is None else hidden[first : first + step],
            )
            for first in range(0, num_queries, step)
        ]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([out for out, _ in parts], 1), torch.cat([lse for _, lse in parts], 1)

    def _read_some(
        self, queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        num_groups, num_queries, heads, size = queries.shape
        flat = queries.reshape(num_groups, num_queries * heads, size)
        scores = torch.bmm(flat, keys.transpose(1, 2)).float().mul_(size**-0.5)
        if self._softcap is not None:
            scores.div_(self._softcap).tanh_().mul_(self._softcap)
        scores = scores.view(num_groups, num_queries, heads, -1)
        if hidden is not None:
            scores.masked_fill_(hidden[:, None], -torch.inf)
        lse = torch.logsumexp(scores, dim=-1)
        weights = scores.sub_(lse.clamp(min=_NOBODY).unsqueeze(-1)).exp_().to(values.dtype)
        out = torch.bmm(weights.view(num_groups, num_queries * heads, -1), values)
        return out.view(queries.shape), lse


def _joined(out: Tensor, lse: Tensor) -> Tensor:
    """[G, T, h, D] of outputs [levels, G, T, h, D] and their log-sum-exps. Pure."""
    if len(out) == 1:
        return out[0]
    weight = torch.softmax(lse, dim=0).to(out.dtype).unsqueeze(-1)
    return (out * weight).sum(dim=0)


def _part(segment: Segment, reading: StepReading, device: torch.device) -> _Part:
    """The segment with its mask on the device. Pure."""
    places = slice(segment.first_place, segment.end_place)
    low, high = reading.low[places, None], reading.high[places, None]
    positions = np.arange(segment.first_position, segment.end_position)
    hidden = (positions < low) | (positions >= high)
    mask = torch.from_numpy(hidden).to(device) if hidden.any() else None
    return _Part(segment.depth, places, _where(segment.slots, device), mask)


def _where(slots: NDArray[np.int64], device: torch.device) -> slice | Tensor:
    """A slice if `slots` are consecutive, else an index tensor. Pure."""
    if bool((np.diff(slots) == 1).all()):
        return slice(int(slots[0]), int(slots[-1]) + 1)
    return torch.tensor(slots, device=device)
