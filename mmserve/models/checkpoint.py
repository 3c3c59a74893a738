"""A checkpoint as builders get it: where it lies, what it says of itself, and where it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmserve.kernels import Ops
from mmserve.models.gguf import GgufSource
from mmserve.models.weights import SafetensorsSource, Weights

__all__ = ["Checkpoint"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One checkpoint on its way to a device.

    Args:
        path: a directory as Hugging Face writes it, or a .gguf file.
        config: its config.json.
        dtype: of everything loaded.
        device: where it goes.
        bits: of the decoder's matrices, 8 or 4; None: they are of `dtype`.
        ops: what computes; None: torch alone.
        context_length: most tokens of a sequence; None: as many as the model was made for.
    """

    path: Path
    config: Mapping[str, Any]
    dtype: torch.dtype
    device: torch.device
    bits: int | None = None
    ops: Ops | None = None
    context_length: int | None = None

    @property
    def family(self) -> str:
        """The word that config.json uses. Pure."""
        return str(self.config.get("model_type", ""))

    def weights(self) -> Weights:
        """Its tensors by canonical name. Raises ModelRefused."""
        is_gguf = self.path.suffix == ".gguf"
        source = GgufSource(self.path) if is_gguf else SafetensorsSource(self.path)
        return Weights(source, self.dtype, self.device, bits=self.bits, ops=self.ops)
