"""Sizes of a run: true ones on a GPU, tiny ones in a dry run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Line", "Setting", "best_s"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how much is measured.

    Args:
        device: the GPU, or the CPU in a dry run.
        dtype: of weights and KV.
        is_tiny: whether sizes are tiny.
        limit_s: seconds from the start behind which no new section begins.
    """

    device: torch.device
    dtype: torch.dtype
    is_tiny: bool
    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Seconds left."""
        return self.limit_s - (time.monotonic() - self.began_s)

    def wait(self) -> None:
        """Let the device finish."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of the table: what was measured, what came out, and what to hold it against."""

    section: str
    name: str
    value: float
    unit: str
    against: float | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON. Pure."""
        return {name: getattr(self, name) for name in self.__slots__}


def best_s(setting: Setting, work: Callable[[], object], repeats: int = 5) -> float:
    """Seconds of the best of several calls, after one that does not count."""
    work()
    times = []
    for _ in range(repeats):
        setting.wait()
        began = time.perf_counter()
        work()
        setting.wait()
        times.append(time.perf_counter() - began)
    return min(times)
