"""The store of keys and values: obeys slots that the planning wing hands out."""

from __future__ import annotations

import numpy as np
import torch

from mmserve.kernels import KvTensors
from mmserve.models import DecoderShape

__all__ = ["KvStore", "kv_bytes_per_token"]


def kv_bytes_per_token(shape: DecoderShape, dtype: torch.dtype) -> int:
    """Bytes of one slot over all layers, keys and values. Pure."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_size * dtype.itemsize


class KvStore:
    """Keys and values of `num_slots` tokens, [layers, G, N, D] each, zero at first.

    Head-major, so that a run of slots of one head is one matrix: reading a shared prefix of 576
    tokens needs no copy. On a CPU, memory is taken from the system only as slots are written.
    """

    __slots__ = ("num_slots", "tensors")

    def __init__(
        self, shape: DecoderShape, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        sizes = (shape.num_layers, shape.num_kv_heads, num_slots, shape.head_size)
        self.tensors = KvTensors(_zeros(sizes, dtype, device), _zeros(sizes, dtype, device))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type == "cpu" and dtype == torch.float32:
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))  # pages come when touched
    return torch.zeros(shape, dtype=dtype, device=device)
