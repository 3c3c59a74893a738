"""A processor's arrays on their way to the device."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["placed"]


def placed(
    values: NDArray[Any], device: torch.device, dtype: torch.dtype | None = None
) -> Tensor:
    """A copy on the device, in `dtype` or its own. Pure.

    To a GPU it goes through page-locked memory, so that the host waits for no stream.
    """
    if device.type == "cuda":
        host = torch.tensor(values).pin_memory()
        return host.to(device, dtype, non_blocking=True)
    return torch.tensor(values, dtype=dtype, device=device)
