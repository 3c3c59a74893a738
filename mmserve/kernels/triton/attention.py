"""Paged attention in Triton: the reading of a step as work items, one kernel, and a merge.

    rows -> reading (tree of segments) -> items -> one copy to the device
    attend: items with few queries | items with many -> merge of what several items answer

A segment that rows share is read once for all of them; long ones are cut for all processors.
Nothing here waits for the device: arrays go there from pinned memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import AttentionPlan, KvTensors, KvWriter, QueryRow
from mmserve.kernels.reading import StepReading, plan_reading
from mmserve.kernels.triton.attend import ITEM_FIELDS, attend_kernel
from mmserve.kernels.triton.items import Division, StepItems, apart, step_items
from mmserve.kernels.triton.merge import merge_kernel
from mmserve.kernels.triton.tables import (
    MERGE_HEADS,
    MERGE_WARPS,
    TARGETS,
    AttentionTiles,
    Tile,
    attention_tiles,
    padded_size,
)
from mmserve.kernels.triton.writer import TritonKvWriter

__all__ = ["DecodeCapacity", "DecodePlan", "TritonAttention"]

_INTERPRETED_PROCESSORS = 8
"""Where no GPU is, long segments are still cut, so that the same paths run."""
_ALIGNED = 4
"""Arrays begin at multiples of so many int32: 16 bytes, as the kernels are specialised for."""
_PARTIALS_PER_ROW = 8
"""Partial outputs that a decode plan has room for, beside those of its pieces."""


@dataclass(frozen=True, slots=True)
class DecodeCapacity:
    """What a decode plan has room for: rows of one query, and the tokens that each sees."""

    num_rows: int
    num_slots: int


class TritonAttention:
    """Attention backend of Triton kernels, equal to `TorchAttention` within rounding.

    Stores are of float32, float16 or bfloat16 with any strides; heads of 16 to 256.

    The device is that of the store: a CUDA device, or the CPU where Triton interprets.

    Args:
        writer: what makes the writers.
        tiles: other tiles than those of the table.
        num_processors: other than the device has.
    """

    def __init__(
        self,
        *,
        writer: Callable[[KvTensors, NDArray[np.int64]], KvWriter] = TritonKvWriter,
        tiles: AttentionTiles | None = None,
        num_processors: int | None = None,
    ) -> None:
        self._writer = writer
        self._tiles = tiles
        self._num_heads: int | None = None
        self._num_processors = num_processors

    def plan(
        self,
        kv: KvTensors,
        rows: Sequence[QueryRow],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> AttentionPlan:
        """See `AttentionBackend.plan`.

        Items depend on the number of query heads, which only `attend` tells: the first plan is
        cut there, the later ones here, for as many heads as the last.
        """
        plan = _StepPlan(kv, plan_reading(rows, window), softcap, self)
        if self._num_heads is not None and self._num_heads % kv.keys.shape[1] == 0:
            plan.cut(self._num_heads)
        return plan

    def decode_plan(
        self,
        kv: KvTensors,
        capacity: DecodeCapacity,
        num_heads: int,
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> DecodePlan:
        """A plan whose launches and addresses stay, for CUDA graphs of decode steps.

        `kv`, `window` and `softcap` are as `plan` says, `num_heads` counts all query heads, and
        `capacity` is that of the largest step.

        Until the first `update` all outputs are 0.
        """
        division = self.divided(num_heads, kv)
        return DecodePlan(kv, capacity, division, window, softcap)

    def writer(self, kv: KvTensors, slots: NDArray[np.int64]) -> KvWriter:
        """See `AttentionBackend.writer`. Pure."""
        return self._writer(kv, slots)

    def divided(self, num_heads: int, kv: KvTensors) -> Division:
        """How a step of `num_heads` query heads is cut.

        Changes: later plans are cut for as many heads when they are made.
        """
        self._num_heads = num_heads
        _, num_groups, _, size = kv.keys.shape
        heads = num_heads // num_groups
        capability, num_processors = _machine(kv.keys.device)
        tiles = self._tiles or attention_tiles(capability, size, kv.keys.element_size() * 8)
        num_processors = self._num_processors or num_processors
        return Division(heads, num_groups, _fitted(tiles, heads), num_processors)


def _machine(device: torch.device) -> tuple[int, int]:
    """Compute capability, 80 for 8.0, and number of processors. Pure."""
    if device.type != "cuda":
        return min(TARGETS), _INTERPRETED_PROCESSORS
    properties = torch.cuda.get_device_properties(device)
    return 10 * properties.major + properties.minor, properties.multi_processor_count


def _fitted(tiles: AttentionTiles, heads: int) -> AttentionTiles:
    """Tiles that hold at least the query heads of one KV head. Pure."""
    least = 1 << (heads - 1).bit_length()
    return AttentionTiles(
        *(replace(tile, rows=max(tile.rows, least)) for tile in (tiles.narrow, tiles.wide))
    )


@dataclass(frozen=True, slots=True)
class _Room:
    """Lengths of the arrays of `StepItems`, in their order, and of the partial outputs."""

    places: int
    narrow: int
    wide: int
    joins: int
    sources: int
    slots: int

    @staticmethod
    def of(items: StepItems) -> _Room:
        """Just enough for `items`."""
        return _Room(
            len(items.order),
            len(items.narrow),
            len(items.wide),
            len(items.joins),
            len(items.sources),
            len(items.slots),
        )

    def holds(self, items: StepItems) -> bool:
        """If every array of `items` fits. Pure."""
        need = _Room.of(items)
        return all(getattr(need, name) <= getattr(self, name) for name in self.__slots__)

    def bounds(self) -> list[tuple[int, int]]:
        """[start, end) of each array in one int32 array of all, each aligned. Pure."""
        fields = len(ITEM_FIELDS)
        lengths = [self.places] * 3
        lengths += [self.narrow * fields, self.wide * fields, self.joins * 3, self.sources]
        lengths += [self.slots]
        padded = [-(-length // _ALIGNED) * _ALIGNED for length in lengths]
        starts = itertools.accumulate(padded, initial=0)
        return [(start, start + n) for start, n in zip(starts, lengths, strict=False)]


class _Launches:
    """What runs at each layer: the arrays on the device, and the grids.

    Args:
        packed: int32 [n] on the device, the arrays of `StepItems` where `room` says.
    """

    def __init__(
        self,
        kv: KvTensors,
        packed: Tensor,
        room: _Room,
        division: Division,
        softcap: float | None,
    ) -> None:
        self._kv = kv
        self._room = room
        self._division = division
        self._softcap = softcap
        arrays = [packed[start:end] for start, end in room.bounds()]
        order, low, high, narrow, wide, self._joins, self._sources, slots = arrays
        self._reading = (order, low, high, slots)
        both = (
            (narrow, room.narrow, division.tiles.narrow),
            (wide, room.wide, division.tiles.wide),
        )
        self._parts: list[tuple[Tensor, int, Tile]] = [part for part in both if part[1]]

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `AttentionPlan.attend`. Pure."""
        num_tokens, num_heads, size = queries.shape
        if queries.stride(2) != 1:
            queries = queries.contiguous()
        out = torch.empty(queries.shape, dtype=queries.dtype, device=queries.device)
        if not num_tokens:
            return out
        shape = (self._room.sources, num_heads, size)
        partial_out = torch.empty(shape, dtype=torch.float32, device=queries.device)
        partial_lse = torch.empty(shape[:2], dtype=torch.float32, device=queries.device)
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        for items, num_items, tile in self._parts:
            attend_kernel[(num_items * self._division.num_groups,)](
                queries,
                keys,
                values,
                out,
                partial_out,
                partial_lse,
                items,
                *self._reading,
                *queries.stride()[:2],
                *keys.stride(),
                *values.stride(),
                self._division.num_groups,
                size**-0.5,
                self._softcap or 1.0,
                heads=self._division.heads,
                size=size,
                padded_size=padded_size(size),
                tile_rows=tile.rows,
                tile_slots=tile.slots,
                is_capped=self._softcap is not None,
                num_warps=tile.warps,
                num_stages=tile.stages,
                enable_fp_fusion=True,
            )
        if self._room.joins:
            merge_kernel[(self._room.joins, triton.cdiv(num_heads, MERGE_HEADS))](
                out,
                partial_out,
                partial_lse,
                self._joins,
                self._sources,
                num_heads,
                size=size,
                padded_size=padded_size(size),
                tile_heads=MERGE_HEADS,
                num_warps=MERGE_WARPS,
                enable_fp_fusion=True,
            )
        return out


class _StepPlan:
    """See `AttentionPlan`: of one step, made anew for the next."""

    def __init__(
        self,
        kv: KvTensors,
        reading: StepReading,
        softcap: float | None,
        attention: TritonAttention,
    ) -> None:
        self._kv = kv
        self._reading = reading
        self._softcap = softcap
        self._attention = attention
        self._num_heads = 0

    def cut(self, num_heads: int) -> None:
        """Send the items for so many query heads to the device. Changes: the plan."""
        division = self._attention.divided(num_heads, self._kv)
        items = step_items(self._reading, division)
        room = _Room.of(items)
        device = self._kv.keys.device
        host = _packed(items, room, is_pinned=device.type == "cuda")
        packed = host.to(device, non_blocking=True)
        self._launches = _Launches(self._kv, packed, room, division, self._softcap)
        self._num_heads = num_heads

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `AttentionPlan.attend`. Changes: the plan is cut again for other heads."""
        if self._num_heads != queries.shape[1]:
            self.cut(queries.shape[1])
        return self._launches.attend(layer, queries)


class DecodePlan:
    """A plan of steps with one query a row; made by `TritonAttention.decode_plan`.

        plan = attention.decode_plan(kv, capacity, num_heads)
        plan.update(rows)        capture: attend(layer, queries) at every layer
        plan.update(next_rows)   replay; and so on

    Grids, addresses and shapes depend on the capacity alone: `update` writes new items into the
    same arrays on the device, in the order of the stream, and those without work end at once.
    The rows of a step come first; outputs of the places behind them are 0.

    If a step shares so much that its items do not fit, its rows are read one by one.
    """

    def __init__(
        self,
        kv: KvTensors,
        capacity: DecodeCapacity,
        division: Division,
        window: int | None,
        softcap: float | None,
    ) -> None:
        self.capacity = capacity
        self._division = division
        self._window = window
        self._room = _decode_room(capacity, division)
        self._bounds = self._room.bounds()
        self._packed = torch.zeros(
            self._bounds[-1][1], dtype=torch.int32, device=kv.keys.device
        )
        self._launches = _Launches(kv, self._packed, self._room, division, softcap)
        self.update(())

    def update(self, rows: Sequence[QueryRow]) -> None:
        """Read for `rows` from now on.

        Args:
            rows: of at most one query each.

        Changes: the plan. Does not wait: launches that are under way read the old arrays.
        Raises ValueError: the rows exceed the capacity.
        """
        asking = [row for row in rows if row.num_queries]
        longest = max((len(row.slots) for row in asking), default=0)
        if len(asking) > self.capacity.num_rows or longest > self.capacity.num_slots:
            raise ValueError(f"{len(asking)} rows of up to {longest} slots: {self.capacity}")
        if any(row.num_queries > 1 for row in asking):
            raise ValueError("a decode plan is for rows of one query")
        items = step_items(plan_reading(asking, self._window), self._division)
        if not self._room.holds(items):
            items = step_items(apart(asking, self._window), self._division)
        host = _packed(self._with_rest(items), self._room, is_pinned=self._packed.is_cuda)
        self._packed[: len(host)].copy_(host, non_blocking=True)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Attention of queries [num_rows of the capacity, H, D]; see `AttentionPlan.attend`."""
        return self._launches.attend(layer, queries)

    def _with_rest(self, items: StepItems) -> StepItems:
        """Zeros for the places without a row, and nothing to do for the other joins. Pure."""
        num_used, num_rows = len(items.order), self._room.places
        joins = np.zeros((num_rows, 3), dtype=np.int32)
        joins[:, 0] = -1
        joins[: len(items.joins)] = items.joins
        joins[len(items.joins) :][: num_rows - num_used, 0] = np.arange(num_used, num_rows)
        return replace(items, joins=joins)


def _decode_room(capacity: DecodeCapacity, division: Division) -> _Room:
    """Room for all rows read one by one, and for what most trees of them need. Pure.

    Each row adds at most two edges to a tree.
    """
    tiles = division.tiles
    narrow, wide = (
        division.num_programs(tile) + 2 * capacity.num_rows
        for tile in (tiles.narrow, tiles.wide)
    )
    return _Room(
        capacity.num_rows,
        narrow,
        wide,
        capacity.num_rows,
        narrow + _PARTIALS_PER_ROW * capacity.num_rows,
        capacity.num_rows * capacity.num_slots,
    )


def _packed(items: StepItems, room: _Room, *, is_pinned: bool) -> Tensor:
    """All arrays in one, on the host, where `room` says; the slots, which are last, end it.

    What `items` do not fill is 0: items without queries.
    """
    arrays: list[NDArray[np.int32]] = [
        items.order,
        items.low,
        items.high,
        items.narrow,
        items.wide,
        items.joins,
        items.sources,
        items.slots,
    ]
    bounds = room.bounds()
    host = torch.zeros(
        bounds[-1][0] + len(items.slots), dtype=torch.int32, pin_memory=is_pinned
    )
    view: NDArray[Any] = host.numpy()
    for array, (start, _) in zip(arrays, bounds, strict=True):
        view[start : start + array.size] = array.ravel()
    return host
