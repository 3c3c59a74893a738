"""Small host arrays on the device, and back, without waiting for the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Fetched", "to_device", "together"]

_ALIGNED_BYTES = 16
_DTYPES: Mapping[str, torch.dtype] = {
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
}


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy of an array on the device, in the order of the current stream. Pure.

    A GPU reads it from pinned memory, so that the host does not wait.
    """
    host = torch.from_numpy(array)
    if device.type == "cpu":
        return host.clone()
    return host.pin_memory().to(device, non_blocking=True)


def together(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[Tensor]:
    """Copies of arrays of int32, int64, float32 or float64, made by one transfer. Pure."""
    offsets, end = [], 0
    for array in arrays:
        offsets.append(end)
        end += -(-array.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
    host = np.zeros(max(end, _ALIGNED_BYTES), dtype=np.uint8)
    for offset, array in zip(offsets, arrays, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1)
        host[offset : offset + array.nbytes] = flat.view(np.uint8)
    there = to_device(host, device)
    return [
        there[offset : offset + array.nbytes].view(_DTYPES[array.dtype.name]).view(array.shape)
        for offset, array in zip(offsets, arrays, strict=True)
    ]


class Fetched:
    """A device tensor on its way to the host; `read` waits for it, not for what follows."""

    __slots__ = ("_event", "_host")

    def __init__(self, tensor: Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensor.device.type == "cpu":
            self._host = tensor
            return
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        self._host.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensor.device))

    def read(self) -> Tensor:
        """The tensor on the host. Waits for the copy."""
        if self._event is not None:
            self._event.synchronize()
        return self._host
