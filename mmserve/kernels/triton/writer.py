"""Writes the new tokens' KV of one step by Triton kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mmserve.kernels.attention import KvTensors, Turn
from mmserve.kernels.triton.staging import to_device
from mmserve.kernels.triton.turning import turn_to_store, write_to_store

__all__ = ["TritonKvWriter"]


class TritonKvWriter:
    """See `KvWriter`; each call is one launch.

    Args:
        kv: the store, on the device.
        slots: int64 [T], where each token's KV goes; a tensor on the device may be refilled
            between steps, and a negative slot is not written.
    """

    __slots__ = ("_kv", "_slots")

    def __init__(self, kv: KvTensors, slots: NDArray[np.int64] | Tensor) -> None:
        self._kv = kv
        self._slots = slots if isinstance(slots, Tensor) else to_device(slots, kv.keys.device)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """See `KvWriter.write`. Changes: the store."""
        write_to_store(keys, values, self._kv.keys[layer], self._kv.values[layer], self._slots)

    def turn_and_write(self, layer: int, fused: Tensor, turn: Turn | None) -> Tensor:
        """See `KvWriter.turn_and_write`. Changes: the store, and the queries in `fused`."""
        num_groups = self._kv.keys.shape[1]
        num_heads = fused.shape[1] - 2 * num_groups
        queries = fused[:, :num_heads]
        if turn is None:
            keys, values = fused[:, num_heads:].split(num_groups, dim=1)
            self.write(layer, keys, values)
            return queries
        cos, sin = turn
        stores = self._kv.keys[layer], self._kv.values[layer]
        turn_to_store(fused, cos.contiguous(), sin.contiguous(), *stores, self._slots)
        return queries
