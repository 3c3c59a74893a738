"""Paged attention compiled for the CPU: the twin of `TorchAttention` on float32.

    rows --plan_reading--> segments --at the first layer--> blocks x key ranges = items
    items x KV heads --threads--> outputs

What a step needs at each layer is laid out once and handed over by one address, so that a layer
costs one call from Python.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import AttentionPlan, KvTensors, KvWriter, QueryRow, Turn
from mmserve.kernels.native.library import native_library
from mmserve.kernels.reading import StepReading, plan_reading

__all__ = ["NativeAttention", "NativeKvWriter", "NativePlan"]

ROWS_PER_BLOCK = 128
"""Places times query heads of a KV head that read a tile of keys together."""
ENOUGH_ITEMS = 24
"""Fewer items than this, counted over KV heads, are cut along the keys."""
MIN_KEYS = 128
"""Keys of an item that is cut no further. Both bounds hold for any number of threads: what is
added up in which order must not depend on it."""

_Ints = NDArray[np.int64]
_Function = Callable[..., Any]
_LONGS = ("num_groups", "heads", "size", "num_items", "num_splits", "most_rows")
_ARRAYS = (
    "order",
    "low",
    "high",
    "first_place",
    "end_place",
    "first_position",
    "first_slot",
    "slots",
    "block_place",
    "block_entry",
    "block_segment",
    "item_block",
    "item_low",
    "item_high",
    "item_partial",
    "split_item",
    "split_num",
    "partial",
)


class _Reading(ctypes.Structure):
    """`Reading` of sources/parts.h."""

    _fields_ = (
        *((name, ctypes.c_long) for name in (*_LONGS, "num_partial_rows")),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *((name, ctypes.c_long) for name in ("layer_step", "group_step", "slot_step")),
        ("softcap", ctypes.c_float),
    )


class _Target(ctypes.Structure):
    """`Target` of sources/parts.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values")),
        *(
            (name, ctypes.c_long)
            for name in ("group_step", "slot_step", "num_tokens", "num_groups", "size")
        ),
        ("slots", ctypes.c_void_p),
    )


class NativeAttention:
    """Attention backend made of compiled loops; float32 on the CPU only.

    Raises Unbuildable: there is no library.
    """

    def __init__(self) -> None:
        library = native_library()
        long, address, integer = ctypes.c_long, ctypes.c_void_p, ctypes.c_int
        self._attend = library.mmserve_attend
        self._attend.argtypes = [address, long, address, long, long, address, integer]
        self._attend.restype = integer
        self._write = library.mmserve_write_kv
        self._write.argtypes = [address, address, long, long, address, long, long, integer]
        self._write.restype = None
        self._turn = library.mmserve_turn_and_write
        self._turn.argtypes = [
            *(address, address, long, long),
            *(address, address, long, long, integer),
        ]
        self._turn.restype = None

    def plan(
        self,
        kv: KvTensors,
        rows: Sequence[QueryRow],
        *,
        window: int | None = None,
        softcap: float | None = None,
    ) -> AttentionPlan:
        """See `AttentionBackend.plan`. Pure."""
        return NativePlan(self._attend, kv, plan_reading(rows, window), softcap)

    def writer(self, kv: KvTensors, slots: NDArray[np.int64]) -> KvWriter:
        """See `AttentionBackend.writer`. Pure."""
        return NativeKvWriter(self._write, self._turn, kv, slots)


class NativeKvWriter:
    """Writes the new tokens' KV of one step.

    Args:
        write: `mmserve_write_kv` of the library.
        turn: `mmserve_turn_and_write` of the library.
        kv: the store.
        slots: int64 [T], where each token's KV goes.
    """

    __slots__ = ("_kv", "_slots", "_target", "_turn", "_write")

    def __init__(
        self,
        write: _Function,
        turn: _Function,
        kv: KvTensors,
        slots: NDArray[np.int64],
    ) -> None:
        _require_rows(kv.keys, kv.values)
        self._write, self._turn = write, turn
        self._kv = kv
        self._slots = np.ascontiguousarray(slots, dtype=np.int64)
        _, num_groups, _, size = kv.keys.shape
        self._target = _Target(
            group_step=kv.keys.stride(1),
            slot_step=kv.keys.stride(2),
            num_tokens=len(slots),
            num_groups=num_groups,
            size=size,
            slots=self._slots.ctypes.data,
        )

    @property
    def target(self) -> int:
        """Address of a `Target` for a layer that was written last; valid as long as this is."""
        return ctypes.addressof(self._target)

    @property
    def store(self) -> tuple[int, int, int]:
        """Addresses of layer 0's keys and values, and floats from a layer to the next."""
        keys, values = self._kv.keys, self._kv.values
        return keys.data_ptr(), values.data_ptr(), keys.stride(0)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `KvWriter.write`. Changes: the store."""
        keys, values = _with_rows(keys), _with_rows(values)
        self._write(
            self._at(layer),
            *(keys.data_ptr(), keys.stride(0), keys.stride(1)),
            *(values.data_ptr(), values.stride(0), values.stride(1)),
            torch.get_num_threads(),
        )

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `KvWriter.turn_and_write`. Changes: the store and `fused`."""
        _, num_groups, _, size = self._kv.keys.shape
        if fused.stride(2) != 1 or fused.stride(1) != size:
            fused = fused.contiguous()
        _require_floats(fused)
        num_heads = fused.shape[1] - 2 * num_groups
        angles: tuple[int | None, int | None, int, int] = (None, None, 0, 0)
        if turn is not None:
            cos, sin = (angle.contiguous() for angle in turn)
            _require_floats(cos, sin)
            angles = (cos.data_ptr(), sin.data_ptr(), cos.stride(0), cos.shape[1])
        self._turn(
            *(self._at(layer), fused.data_ptr(), fused.stride(0), num_heads),
            *angles,
            torch.get_num_threads(),
        )
        return fused[:, :num_heads]

    def _at(self, layer: int) -> int:
        """Address of the target at a layer."""
        target, kv = self._target, self._kv
        target.keys, target.values = _address(kv.keys, layer), _address(kv.values, layer)
        return ctypes.addressof(target)


class NativePlan:
    """See `AttentionPlan`. Blocks are cut when the number of query heads is known.

    Args:
        attend: `mmserve_attend` of the library.
        kv: the store.
        source: what the step reads.
        softcap: as `AttentionBackend.plan` says.
    """

    __slots__ = (
        "_address",
        "_attend",
        "_kept",
        "_kv",
        "_num_heads",
        "_reading",
        "_softcap",
        "_source",
    )

    def __init__(
        self,
        attend: _Function,
        kv: KvTensors,
        source: StepReading,
        softcap: float | None,
    ) -> None:
        _require_rows(kv.keys, kv.values)
        self._attend = attend
        self._kv = kv
        self._source = source
        self._softcap = softcap
        self._kept: dict[str, NDArray[np.generic]] = {}
        self._num_heads = 0
        self._address = 0

    def reading_for(self, num_heads: int) -> int:
        """Address of the `Reading` of a step with queries; valid as long as this is.

        Changes: self, for another number of heads than before.
        """
        if self._num_heads != num_heads:
            self._lay_out(num_heads)
        return self._address

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """See `AttentionPlan.attend`. Pure."""
        shape = queries.shape
        out = torch.empty(shape)
        if not shape[0]:
            return out
        address = self.reading_for(shape[1])
        query_step, head_step, step = queries.stride()
        if queries.dtype is not torch.float32 or step != 1:
            _require_floats(queries)
            queries = queries.contiguous()
            query_step, head_step, _ = queries.stride()
        if self._attend(
            *(address, layer, queries.data_ptr(), query_step, head_step),
            *(out.data_ptr(), torch.get_num_threads()),
        ):
            raise MemoryError("no room for the scores of a block")
        return out

    def _lay_out(self, num_heads: int) -> None:
        """Cut the step's work. Changes: self."""
        source, keys = self._source, self._kv.keys
        _, num_groups, _, size = keys.shape
        heads = num_heads // num_groups
        most = max(1, ROWS_PER_BLOCK // heads)
        first_place = np.array([s.first_place for s in source.segments], dtype=np.int64)
        end_place = np.array([s.end_place for s in source.segments], dtype=np.int64)
        bounds = np.union1d(first_place, end_place)
        roots = bounds[_is_root(bounds, first_place, end_place)]
        enough = -(-int(bounds[-1]) * num_groups // ENOUGH_ITEMS)
        places = _cut_places(bounds.tolist(), roots.tolist(), most, enough)
        entries, segments = _entries(places, first_place, end_place)
        items = _items(source, places, num_groups)
        lengths = np.array([len(s.slots) for s in source.segments], dtype=np.int64)
        num_rows = np.diff(places) * heads
        is_split = items.num > 1
        item_rows = np.where(is_split, num_rows, 0)[items.block]
        starts = np.cumsum(item_rows) - item_rows
        width = -(-size // 16) * 16
        num_partial_rows = int(item_rows.sum())
        self._kept = {
            "order": source.order,
            "low": source.low,
            "high": source.high,
            "first_place": first_place,
            "end_place": end_place,
            "first_position": np.array([s.first_position for s in source.segments], np.int64),
            "first_slot": np.concatenate([[0], lengths.cumsum()]).astype(np.int64),
            "slots": np.concatenate([s.slots for s in source.segments]),
            "block_place": places,
            "block_entry": entries,
            "block_segment": segments,
            "item_block": items.block,
            "item_low": items.low,
            "item_high": items.high,
            "item_partial": np.where(is_split[items.block], starts, -1),
            "split_item": (np.cumsum(items.num) - items.num)[is_split],
            "split_num": items.num[is_split],
            "partial": np.empty((num_groups, num_partial_rows, 2 + width), np.float32),
        }
        self._reading = _Reading(
            num_groups=num_groups,
            heads=heads,
            size=size,
            num_items=len(items.block),
            num_splits=int(is_split.sum()),
            most_rows=int(num_rows.max()),
            num_partial_rows=num_partial_rows,
            keys=keys.data_ptr(),
            values=self._kv.values.data_ptr(),
            layer_step=keys.stride(0),
            group_step=keys.stride(1),
            slot_step=keys.stride(2),
            softcap=self._softcap or 0.0,
            **{name: array.ctypes.data for name, array in self._kept.items()},
        )
        self._address = ctypes.addressof(self._reading)
        self._num_heads = num_heads


@dataclass(frozen=True, slots=True, eq=False)
class _Items:
    """Blocks with the positions [low, high) to read, int64 [n] each, block by block.

    `num` is int64 [blocks], how many items each has.
    """

    block: _Ints
    low: _Ints
    high: _Ints
    num: _Ints


def _is_root(bounds: _Ints, first_place: _Ints, end_place: _Ints) -> NDArray[np.bool_]:
    """Whether places before and after each bound share no segment. Pure."""
    begun = np.searchsorted(np.sort(first_place), bounds, side="left")
    ended = np.searchsorted(np.sort(end_place), bounds, side="right")
    is_root: NDArray[np.bool_] = begun == ended
    return is_root


def _cut_places(bounds: Sequence[int], roots: Sequence[int], most: int, enough: int) -> _Ints:
    """First place of each block and the last one's end: at most `most` places, whole segments.

    Args:
        bounds: rising places where segments begin or end, the first and last place included.
        roots: those of them where a cut makes nobody read a segment twice, the last included.
        most: places of a block.
        enough: a block that has so many ends at the next root, so that there are many to share.

    Pure.
    """
    places = [bounds[0]]
    while places[-1] < bounds[-1]:
        root = roots[bisect_left(roots, min(places[-1] + enough, bounds[-1]))]
        limit = min(places[-1] + most, root)
        bound = bounds[bisect_right(bounds, limit) - 1]
        if bound <= places[-1]:  # a segment of more places than a block's
            behind = bounds[bisect_right(bounds, limit)]
            num_blocks = -(-(behind - places[-1]) // most)
            bound = places[-1] + -(-(behind - places[-1]) // num_blocks)
        places.append(bound)
    return np.array(places, dtype=np.int64)


def _entries(places: _Ints, first_place: _Ints, end_place: _Ints) -> tuple[_Ints, _Ints]:
    """Segments of each block, by rising position: int64 [blocks + 1] bounds and the numbers."""
    first = np.searchsorted(places, first_place, side="right") - 1
    num = np.searchsorted(places, end_place, side="left") - first
    segment = np.repeat(np.arange(len(num)), num)
    block = np.arange(len(segment)) - np.repeat(np.cumsum(num) - num - first, num)
    in_order = np.argsort(block, kind="stable")
    entries = np.searchsorted(block[in_order], np.arange(len(places)))
    return entries, segment[in_order]


def _items(source: StepReading, places: _Ints, num_groups: int) -> _Items:
    """Blocks, cut along the keys if there are few. Pure."""
    low = np.minimum.reduceat(source.low, places[:-1]).astype(np.int64)
    high = np.maximum.reduceat(source.high, places[:-1]).astype(np.int64)
    num_wanted = -(-ENOUGH_ITEMS // (num_groups * len(low)))
    num = np.clip((high - low) // MIN_KEYS, 1, num_wanted)
    block = np.repeat(np.arange(len(num)), num)
    part = np.arange(len(block)) - np.repeat(np.cumsum(num) - num, num)
    span = (high - low)[block]
    return _Items(
        block,
        low[block] + span * part // num[block],
        low[block] + span * (part + 1) // num[block],
        num,
    )


def _address(store: Tensor, layer: int) -> int:
    """Where a layer's first key or value lies."""
    return store.data_ptr() + 4 * layer * store.stride(0)


def _require_floats(*tensors: Tensor) -> None:
    """Raises TypeError for what the compiled loops would misread."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise TypeError(f"{tensor.dtype} on {tensor.device}; float32 on the CPU is needed")


def _require_rows(*stores: Tensor) -> None:
    """Raises TypeError or ValueError unless each slot of a head is D floats side by side."""
    _require_floats(*stores)
    if any(store.stride() != stores[0].stride() or store.stride(3) != 1 for store in stores):
        raise ValueError("keys and values lie differently, or heads are not in one piece")


def _with_rows(tensor: Tensor) -> Tensor:
    """The tensor, or a copy, with the floats of a head side by side."""
    return tensor if tensor.stride(2) == 1 else tensor.contiguous()
