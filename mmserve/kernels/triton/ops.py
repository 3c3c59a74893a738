"""The bundle of Triton kernels: how a GPU computes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from mmserve.core import RowSampling
from mmserve.kernels.attention import AttentionBackend
from mmserve.kernels.layers import ComposedLayers, Layers, LayerShape, LayerWeights
from mmserve.kernels.ops import Draws, Product, TorchOps
from mmserve.kernels.triton.attention import TritonAttention
from mmserve.kernels.triton.drawing import begin_draw
from mmserve.kernels.triton.features import place_features
from mmserve.kernels.triton.gates import gate_and_mul
from mmserve.kernels.triton.norms import add_rms_norm, rms_norm

__all__ = ["TritonOps"]


class TritonOps:
    """Ops made of Triton kernels; products are torch's, so cuBLAS computes them.

    Args:
        attention: its way to attend; None for this room's own.
    """

    name = "triton"

    def __init__(self, attention: AttentionBackend | None = None) -> None:
        self.attention: AttentionBackend = attention or TritonAttention()

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        """See `Ops.linear`."""
        return TorchOps().linear(weight, bias, activation=activation, bits=bits)

    def norm(self, hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.norm`. Pure."""
        return rms_norm(hidden, gain, eps)

    def add_norm(self, hidden: Tensor, delta: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.add_norm`. Changes: `hidden`."""
        return add_rms_norm(hidden, delta, gain, eps)

    def gate(self, activation: str, gate_up: Tensor) -> Tensor:
        """See `Ops.gate`. Pure."""
        return gate_and_mul(activation, gate_up)

    def layers(
        self, weights: Sequence[LayerWeights], shape: LayerShape, final_norm: Tensor
    ) -> Layers:
        """See `Ops.layers`."""
        return ComposedLayers(self, weights, shape, final_norm)

    def place(
        self, hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
    ) -> Tensor | None:
        """See `Ops.place`. One launch. Changes: `hidden`."""
        return place_features(hidden, features, starts, num_deep)

    def draw(self, logits: Tensor, rows: Sequence[RowSampling]) -> Draws:
        """See `Ops.draw`. Returns at once; `read` waits for this draw only."""
        return begin_draw(logits, rows)
