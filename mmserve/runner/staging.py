"""Host arrays of a step on their way to the device: one copy for all of them.

arrays --copied--> buffer of this parity (page-locked) --one transfer--> views on the device
                   buffer of the other parity: still read by the step before, perhaps
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.runner.clock import Mark

__all__ = ["DirectStaging", "PinnedStaging", "Staging", "staging_for"]

_NUM_BUFFERS = 2
_FIRST_SIZE = 1 << 14
Ints = NDArray[np.int64]


class Staging(Protocol):
    """How int64 arrays get to one device."""

    def put(self, arrays: Sequence[Ints]) -> list[Tensor]:
        """The arrays on the device, in order, for this step. Never waits for the step."""
        ...


def staging_for(device: torch.device) -> Staging:
    """What suits the device. Pure."""
    return PinnedStaging(device) if device.type == "cuda" else DirectStaging(device)


class DirectStaging:
    """Arrays as they are, where the device reads the host's memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def put(self, arrays: Sequence[Ints]) -> list[Tensor]:
        """See `Staging.put`. The tensors share the arrays' memory on a CPU."""
        return [torch.from_numpy(array).to(self._device) for array in arrays]


class PinnedStaging:
    """Arrays through buffers that take turns, page-locked on a machine with a GPU.

    Args:
        device: where they go.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._is_pinned = device.type == "cuda"
        self._buffers = [self._new(_FIRST_SIZE) for _ in range(_NUM_BUFFERS)]
        self._sent: list[Mark | None] = [None] * _NUM_BUFFERS
        self._turn = 0

    def put(self, arrays: Sequence[Ints]) -> list[Tensor]:
        """See `Staging.put`. Waits only if the transfer before the last has not run yet.

        Changes: the buffer whose turn it is.
        """
        turn, self._turn = self._turn, (self._turn + 1) % _NUM_BUFFERS
        sent = self._sent[turn]
        if sent is not None:
            sent.wait()
        ends = np.cumsum([array.size for array in arrays]).tolist()
        total = ends[-1] if ends else 0
        if total > len(self._buffers[turn]):
            self._buffers[turn] = self._new(1 << (total - 1).bit_length())
        host = self._buffers[turn]
        flat = host.numpy()
        for array, end in zip(arrays, ends, strict=True):
            flat[end - array.size : end] = array.reshape(-1)
        there = torch.empty(total, dtype=torch.int64, device=self._device)
        there.copy_(host[:total], non_blocking=True)
        self._sent[turn] = Mark(self._device)
        return [
            there[end - array.size : end].view(array.shape)
            for array, end in zip(arrays, ends, strict=True)
        ]

    def _new(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.int64, pin_memory=self._is_pinned)
