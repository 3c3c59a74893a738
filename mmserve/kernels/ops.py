"""The port through which models compute: what a layer and a sampler are made of, on one device.

One bundle is chosen at load (`choice`); weights that stay are given to it once (`linear`), so
that each may lay them out as it likes. Every bundle equals `TorchOps` within rounding.

    Ops: linear -> Product    norm  add_norm  gate    attention -> AttentionBackend
         layers -> Layers     place    draw
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from mmserve.core import RowSampling
from mmserve.kernels.attention import AttentionBackend
from mmserve.kernels.attention_torch import TorchAttention
from mmserve.kernels.elementwise import gelu_and_mul, rms_norm, silu_and_mul
from mmserve.kernels.layers import (
    ComposedLayers,
    LayerOps,
    Layers,
    LayerShape,
    LayerWeights,
    Product,
)
from mmserve.kernels.linear import Linear
from mmserve.kernels.placing import place
from mmserve.kernels.quantized import QuantizedLinear
from mmserve.kernels.sampling import Drawn, sample

__all__ = ["Draws", "Ops", "Product", "TorchOps"]

_GATES = {"silu": silu_and_mul, "gelu_pytorch_tanh": gelu_and_mul}


class Draws(Protocol):
    """Tokens drawn for a step's rows, perhaps still under way on the device."""

    @property
    def token_ids(self) -> Tensor:
        """int64 [R] on the device, for the next step; 0 where a row has a fault."""
        ...

    def read(self) -> list[Drawn]:
        """The choices on the host. Waits for the device."""
        ...


class Ops(LayerOps, Protocol):
    """How one device computes; immutable."""

    @property
    def name(self) -> str:
        """The word for it: `torch`, `native`, `triton`."""
        ...

    @property
    def attention(self) -> AttentionBackend:
        """Its way to attend."""
        ...

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        """A product with a weight that stays.

        Args:
            weight: [out, in]; the caller may drop it.
            bias: [out] or None.
            activation: name of a function as checkpoints spell it, or None.
            bits: 8 or 4: the weight is rounded to so many; None: as it is.

        Raises MissingExtra if the bits need a package that is not installed.
        """
        ...

    def layers(
        self, weights: Sequence[LayerWeights], shape: LayerShape, final_norm: Tensor
    ) -> Layers:
        """All layers of a decoder, whose products are from `linear`.

        Args:
            weights: of the layers, in order.
            shape: what they have in common.
            final_norm: gain [E] behind the last.
        """
        ...

    def place(
        self, hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
    ) -> Tensor | None:
        """Put encoded pictures over the embeddings of their placeholders.

        Args:
            hidden: [T, E], contiguous. Changes: gets the first E values of each row.
            features: [K, E * (1 + num_deep)] each, dense rows; they do not overlap.
            starts: the token under the first row of each.
            num_deep: sets of features beside the embeddings.

        Returns:
            What early layers add: [num_deep, T, E], 0 where no picture is; None without sets or
            without pictures. Pictures must stay until it has run.
        """
        ...

    def draw(self, logits: Tensor, rows: Sequence[RowSampling]) -> Draws:
        """Begin to choose the next token of each row.

        Args:
            logits: [R, V] float32. Changes: overwritten.
            rows: how each row chooses.

        A row with a logit that is not a number, or with nothing allowed, has a fault and no
        token; the others are not affected.
        """
        ...


class TorchOps:
    """Ops made of torch calls."""

    name = "torch"

    def __init__(self) -> None:
        self.attention: AttentionBackend = TorchAttention()

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        """See `Ops.linear`."""
        if bits is None:
            return Linear(weight, bias, activation=activation)
        return QuantizedLinear(weight, bias, bits=bits, activation=activation)

    def norm(self, hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.norm`. Pure."""
        return rms_norm(hidden, gain, eps)

    def add_norm(self, hidden: Tensor, delta: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.add_norm`. Changes: `hidden`."""
        return rms_norm(hidden.add_(delta), gain, eps)

    def gate(self, activation: str, gate_up: Tensor) -> Tensor:
        """See `Ops.gate`. Pure."""
        return _GATES[activation](gate_up)

    def layers(
        self, weights: Sequence[LayerWeights], shape: LayerShape, final_norm: Tensor
    ) -> Layers:
        """See `Ops.layers`."""
        return ComposedLayers(self, weights, shape, final_norm)

    def place(
        self, hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
    ) -> Tensor | None:
        """See `Ops.place`. Changes: `hidden`."""
        return place(hidden, features, starts, num_deep)

    def draw(self, logits: Tensor, rows: Sequence[RowSampling]) -> Draws:
        """See `Ops.draw`. The choices are there when it returns."""
        return _Drawn(sample(logits, rows), logits.device)


class _Drawn:
    """Draws that the host has already."""

    def __init__(self, choices: list[Drawn], device: torch.device) -> None:
        self._choices = choices
        self._device = device

    @property
    def token_ids(self) -> Tensor:
        ids = [choice.token_id or 0 for choice in self._choices]
        return torch.tensor(ids, device=self._device)

    def read(self) -> list[Drawn]:
        return self._choices
