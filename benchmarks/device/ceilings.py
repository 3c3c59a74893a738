"""What the device can do at most: bytes copied and products of matrices a second."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.device.sizes import Line, Setting, best_s

__all__ = ["Ceilings", "measure"]


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Bytes a second (read and written both counted), and operations a second in `dtype`."""

    copy_bytes_per_s: float
    flop_per_s: float


def measure(setting: Setting) -> tuple[Ceilings, list[Line]]:
    """Both ceilings, and their lines."""
    num_bytes, size = (1 << 24, 256) if setting.is_tiny else (4 << 30, 8192)
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    copy = 2 * num_bytes / best_s(setting, partial(target.copy_, source))
    del source, target
    left, right = (
        torch.randn(size, size, device=setting.device, dtype=setting.dtype) for _ in range(2)
    )
    flop = 2 * size**3 / best_s(setting, lambda: left @ right)
    lines = [
        Line(section="ceilings", name="copy", value=copy / 1e12, unit="TB/s"),
        Line(section="ceilings", name=f"product of {size}", value=flop / 1e12, unit="TFLOP/s"),
    ]
    return Ceilings(copy, flop), lines
