"""Paged attention in plain torch, for CPUs and as the reference of faster twins."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import AttentionPlan, KvTensors, QueryRow
from mmserve.kernels.segments import LooseBatch, Segment, StepSegments, plan_segments

__all__ = ["KvWriter", "TorchAttention"]

MAX_SCORES = 1 << 22
"""Most scores held at once by one product (16 MiB of float32)."""
MAX_GATHERED = 1 << 20
"""Most values of keys gathered at once; larger buffers cost new pages each time."""

_Where = slice | Tensor


class TorchAttention:
    """Attention backend made of torch calls: a run of slots is a view, the rest is gathered."""

    def plan(
        self, kv: KvTensors, rows: Sequence[QueryRow], *, window: int | None = None
    ) -> AttentionPlan:
        """See `AttentionBackend.plan`. Pure."""
        return _TorchPlan(kv, plan_segments(rows, window))


class KvWriter:
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
        """Store [T, G, D] keys and values of `layer`. Changes: the store."""
        for store, new in ((self._kv.keys[layer], keys), (self._kv.values[layer], values)):
            if len(self._pieces) * 16 > len(self._index):
                store.index_copy_(1, self._index, new.transpose(0, 1))
                continue
            for first, end, slot in self._pieces:
                store[:, slot : slot + end - first] = new[first:end].transpose(0, 1)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A segment on the device: where its queries and slots are."""

    queries: _Where
    slots: _Where
    segment: Segment


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """A loose batch on the device: `slots` int64 [R * L], `padding` bool [R, L]."""

    queries: _Where
    slots: Tensor
    padding: Tensor
    level: int


class _TorchPlan:
    """See `AttentionPlan`."""

    def __init__(self, kv: KvTensors, step: StepSegments) -> None:
        self._kv = kv
        self._step = step
        device = kv.keys.device
        self._parts = [
            _Part(
                queries=_where(s.queries, device),
                slots=_where(s.slots, device),
                segment=s,
            )
            for s in step.segments
        ]
        self._batches = [part for batch in step.batches for part in _batches(batch, kv)]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        num_tokens, num_heads, size = queries.shape
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        num_groups = keys.shape[0]
        grouped = queries.view(num_tokens, num_groups, -1, size)
        grouped = grouped.transpose(0, 1).contiguous()  # [G, T, H / G, D]
        merge = _Merge(grouped, self._step.num_levels)
        for part in self._parts:
            asked = grouped[:, part.queries]
            out, lse = _attend_part(asked, keys[:, part.slots], values[:, part.slots], part)
            merge.put(part.segment.level, part.queries, out, lse)
        for batch in self._batches:
            out, lse = _attend_batch(grouped[:, batch.queries], keys, values, batch)
            merge.put(batch.level, batch.queries, out, lse)
        return merge.total().transpose(0, 1).reshape(num_tokens, num_heads, size)


class _Merge:
    """Parts of each query's output, one buffer a level, joined by their log-sum-exp."""

    def __init__(self, grouped: Tensor, num_levels: int) -> None:
        self._out = grouped.new_zeros((num_levels, *grouped.shape))
        self._lse = grouped.new_full((num_levels, *grouped.shape[:-1]), -torch.inf)

    def put(self, level: int, queries: _Where, out: Tensor, lse: Tensor) -> None:
        """Lay down [G, n, H / G, D] outputs and [G, n, H / G] log-sum-exps. Changes: self."""
        self._out[level][:, queries] = out
        self._lse[level][:, queries] = lse

    def total(self) -> Tensor:
        if len(self._out) == 1:
            return self._out[0]
        weight = torch.softmax(self._lse, dim=0).unsqueeze(-1)
        total = self._out[0] * weight[0]
        for level in range(1, len(self._out)):
            total.addcmul_(self._out[level], weight[level])
        return total


def _where(places: NDArray[np.int64], device: torch.device) -> _Where:
    """A slice if `places` are consecutive, else an index tensor."""
    if len(places) and bool((np.diff(places) == 1).all()):
        return slice(int(places[0]), int(places[-1]) + 1)
    return torch.tensor(places, device=device)


def _batches(batch: LooseBatch, kv: KvTensors) -> Iterator[_Batch]:
    """The batch on the device, in pieces that gather at most MAX_GATHERED values of keys."""
    table, device = batch.table, kv.keys.device
    width = kv.keys.shape[1] * kv.keys.shape[3]
    step = max(1, MAX_GATHERED // (width * table.slots.shape[1]))
    for first in range(0, len(table.queries), step):
        some = slice(first, first + step)
        yield _Batch(
            queries=_where(table.queries[some], device),
            slots=torch.from_numpy(table.slots[some].reshape(-1)).to(device),
            padding=torch.from_numpy(table.is_padding[some]).to(device),
            level=batch.level,
        )


def _attend_part(
    queries: Tensor, keys: Tensor, values: Tensor, part: _Part
) -> tuple[Tensor, Tensor]:
    """[G, n, h, D] queries on [G, L, D]; outputs [G, n, h, D] and lse [G, n, h]."""
    num_groups, num_queries, heads, size = queries.shape
    if part.segment.is_causal:
        return _attend_causal(queries, keys, values, part.segment.window)
    flat = queries.reshape(num_groups, num_queries * heads, size)
    step = max(1, MAX_SCORES // (num_groups * keys.shape[1]))
    parts = [_softmax_product(some, keys, values, None) for some in flat.split(step, dim=1)]
    return _joined(parts, queries.shape)


def _attend_causal(
    queries: Tensor, keys: Tensor, values: Tensor, window: int | None
) -> tuple[Tensor, Tensor]:
    """Queries are the last n of L tokens; each sees itself and all before, or `window`."""
    num_groups, num_queries, heads, size = queries.shape
    num_keys = keys.shape[1]
    if window is None and num_queries == num_keys and _has_flash(queries):
        return _flash_causal(queries, keys, values)
    step = max(1, MAX_SCORES // (num_groups * heads * num_keys))
    key_at = torch.arange(num_keys, device=queries.device)
    parts: list[tuple[Tensor, Tensor]] = []
    for first in range(0, num_queries, step):
        chunk = queries[:, first : first + step]
        query_at = torch.arange(first, first + chunk.shape[1], device=queries.device)
        query_at = query_at[:, None] + (num_keys - num_queries)
        hidden = key_at > query_at
        if window is not None:
            hidden |= key_at <= query_at - window
        flat = chunk.reshape(num_groups, -1, size)
        hidden = hidden.repeat_interleave(heads, dim=0)
        parts.append(_softmax_product(flat, keys, values, hidden))
    return _joined(parts, queries.shape)


def _has_flash(queries: Tensor) -> bool:
    return queries.device.type == "cpu" and queries.dtype == torch.float32


def _flash_causal(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The CPU's fused kernel; heads of a group read one key head through a stride of 0."""
    heads = queries.shape[2]
    shape = (-1, heads, -1, -1)
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries.transpose(1, 2),
        keys.unsqueeze(1).expand(shape),
        values.unsqueeze(1).expand(shape),
        is_causal=True,
    )
    return out.transpose(1, 2), lse.view(lse.shape[0], heads, -1).transpose(1, 2)


def _joined(parts: list[tuple[Tensor, Tensor]], shape: torch.Size) -> tuple[Tensor, Tensor]:
    if len(parts) == 1:
        out, lse = parts[0]
    else:
        out = torch.cat([part[0] for part in parts], dim=1)
        lse = torch.cat([part[1] for part in parts], dim=1)
    return out.view(shape), lse.view(shape[:-1])


def _softmax_product(
    queries: Tensor, keys: Tensor, values: Tensor, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    """[B, M, D] queries on [B, L, D]; outputs [B, M, D] and log-sum-exp [B, M].

    `hidden`, bool and broadcast over [B, M, L], is what is not read.
    """
    scale = queries.shape[-1] ** -0.5
    scores = torch.baddbmm(
        queries.new_empty(1), queries, keys.transpose(1, 2), beta=0, alpha=scale
    )
    if hidden is not None:
        scores.masked_fill_(hidden, -torch.inf)
    peak = scores.amax(dim=-1, keepdim=True)
    scores.sub_(peak).exp_()
    total = scores.sum(dim=-1, keepdim=True)
    out = torch.bmm(scores, values).div_(total)
    return out, total.log_().add_(peak).squeeze(-1)


def _attend_batch(
    queries: Tensor, keys: Tensor, values: Tensor, batch: _Batch
) -> tuple[Tensor, Tensor]:
    """[G, R, h, D] single queries, each on its own padded [L] slots."""
    num_groups, num_queries, heads, size = queries.shape
    flat = queries.reshape(num_groups * num_queries, heads, size)
    own_keys = keys.index_select(1, batch.slots).view(len(flat), -1, size)
    own_values = values.index_select(1, batch.slots).view(len(flat), -1, size)
    padding = batch.padding.repeat(num_groups, 1).unsqueeze(1)
    out, lse = _softmax_product(flat, own_keys, own_values, padding)
    return out.view(queries.shape), lse.view(queries.shape[:-1])
