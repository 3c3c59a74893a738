"""Which attention a CUDA device gets: FlashInfer where it runs, else the other kernels'."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from mmserve.kernels.attention import AttentionBackend
from mmserve.kernels.flashinfer import FlashInferAttention
from mmserve.kernels.flashinfer.attention import DTYPES

__all__ = ["ChosenAttention", "choose_cuda_attention", "why_not_flashinfer"]

_OLDEST = (0, 7)
_LEAST_CAPABILITY = (8, 0)
_BUILT = "flashinfer_jit_cache"
"""A package of FlashInfer's with kernels that are compiled already."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenAttention:
    """What attends, and a line that says why."""

    attention: AttentionBackend
    notes: tuple[str, ...]


def choose_cuda_attention(
    device: torch.device, dtype: torch.dtype, fallback: AttentionBackend, name: str = "triton"
) -> ChosenAttention:
    """FlashInfer with `fallback` for what it does not do, or `fallback` alone.

    Args:
        device: where the model lies.
        dtype: of keys and values.
        fallback: attention that takes everything.
        name: the word for it.

    Cost: imports FlashInfer, seconds; its kernels are compiled at their first use.
    """
    reason = why_not_flashinfer(device, dtype)
    if reason is None:
        try:
            library = importlib.import_module("flashinfer")
        except Exception as error:  # noqa: BLE001 - whatever its own imports raise
            reason = f"its import failed: {error}"
        else:
            attention = FlashInferAttention(fallback, library, device)
            return ChosenAttention(attention, (f"flashinfer attends, {name} where it cannot",))
    return ChosenAttention(fallback, (f"{name} attends, flashinfer is not used: {reason}",))


def why_not_flashinfer(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why FlashInfer cannot attend here, in one line; None if it can. Pure."""
    reason: str | None = None
    if device.type != "cuda":
        reason = "the device is no CUDA device"
    elif importlib.util.find_spec("flashinfer") is None:
        reason = "it is not installed (pip install mmserve[cuda])"
    elif _version() < _OLDEST:
        reason = f"its version is {'.'.join(map(str, _version()))}, 0.7 is the oldest known"
    elif dtype not in DTYPES:
        reason = f"KV is {dtype}, its kernels are of float16 and bfloat16".replace("torch.", "")
    elif torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY:
        reason = "the device is older than compute capability 8.0"
    elif not _can_build():
        reason = "its kernels are compiled at their first use, and there is no nvcc"
    return reason


def _version() -> tuple[int, ...]:
    try:
        text = importlib.metadata.version("flashinfer-python")
    except importlib.metadata.PackageNotFoundError:  # a copy without its metadata
        return _OLDEST
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def _can_build() -> bool:
    """Whether its kernels are there, or a compiler for them."""
    if importlib.util.find_spec(_BUILT) is not None or shutil.which("nvcc"):
        return True
    return Path("/usr/local/cuda/bin/nvcc").is_file()  # where FlashInfer looks last
