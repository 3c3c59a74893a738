"""The store of keys and values: obeys slots that the planning wing hands out."""

from __future__ import annotations

import numpy as np
import torch

from mmserve.kernels import KvTensors
from mmserve.models import DecoderShape

__all__ = ["KvStore", "by_slot", "kv_bytes_per_token"]


def kv_bytes_per_token(shape: DecoderShape, dtype: torch.dtype) -> int:
    """Bytes of one slot over all layers, keys and values. Pure."""
    return 2 * shape.num_layers * shape.num_kv_heads * shape.head_size * dtype.itemsize


class KvStore:
    """Keys and values of `num_slots` tokens, [layers, G, N, D] each, zero at first.

    On a CPU the slots of a head lie together, so that a run of them is one matrix: reading a
    shared prefix of 576 tokens needs no copy; memory is taken from the system only as slots are
    written. On other devices the heads of a slot lie together, so that a token is written and
    read in one piece: the tensors are views of [layers, N, G, D].
    """

    __slots__ = ("num_slots", "tensors")

    def __init__(
        self, shape: DecoderShape, num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        sizes = (shape.num_layers, shape.num_kv_heads, num_slots, shape.head_size)
        make = _by_head if device.type == "cpu" else by_slot
        self.tensors = KvTensors(make(sizes, dtype, device), make(sizes, dtype, device))


Sizes = tuple[int, int, int, int]


def _by_head(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if dtype == torch.float32:
        return torch.from_numpy(np.zeros(sizes, dtype=np.float32))  # pages come when touched
    return torch.zeros(sizes, dtype=dtype, device=device)


def by_slot(sizes: Sizes, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """[layers, G, N, D] zeros that lie as [layers, N, G, D]. Pure."""
    layers, groups, slots, size = sizes
    return torch.zeros((layers, slots, groups, size), dtype=dtype, device=device).transpose(
        1, 2
    )
