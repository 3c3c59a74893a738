"""Ops in compiled C for a CPU in float32; anything else falls back to torch."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from mmserve.core import RowSampling
from mmserve.kernels.attention import AttentionBackend
from mmserve.kernels.layers import Layers, LayerShape, LayerWeights
from mmserve.kernels.native.attention import NativeAttention
from mmserve.kernels.native.build import Unbuildable
from mmserve.kernels.native.layers import GATES, NativeLayers
from mmserve.kernels.native.library import native_library
from mmserve.kernels.native.linear import NativeLinear, codes_and_scales, values_of
from mmserve.kernels.ops import Draws, Ops, Product, TorchOps

__all__ = ["NativeOps", "check_against"]

_TOLERANCE = 1e-4


class NativeOps:
    """See `Ops`. Raises Unbuildable: there is no library, or it computes something else.

    Cost: 5 s where the library is not built yet, else some milliseconds.
    """

    name = "native"

    def __init__(self) -> None:
        library = native_library()
        self.attention: AttentionBackend = NativeAttention()
        self._torch = TorchOps()
        self._norm = library.mmserve_norm
        self._add_norm = library.mmserve_add_norm
        self._gate = library.mmserve_gate
        check_against(self, self._torch)

    def linear(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> Product:
        """See `Ops.linear`."""
        return NativeLinear(weight, bias, activation=activation, bits=bits)

    def norm(self, hidden: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.norm`. Pure."""
        if hidden.dim() == 3:
            hidden = hidden.contiguous()  # some heads of each row
        if not (_is_plain(hidden) and _is_plain(gain)):
            return self._torch.norm(hidden, gain, eps)
        out = torch.empty(hidden.shape)
        size = hidden.shape[-1]
        if hidden.numel():
            self._norm(
                hidden.data_ptr(),
                gain.data_ptr(),
                out.data_ptr(),
                hidden.numel() // size,
                size,
                eps,
                torch.get_num_threads(),
            )
        return out

    def add_norm(self, hidden: Tensor, delta: Tensor, gain: Tensor, eps: float) -> Tensor:
        """See `Ops.add_norm`. Changes: `hidden`."""
        if not (_is_plain(hidden) and _is_plain(delta) and _is_plain(gain)):
            return self._torch.add_norm(hidden, delta, gain, eps)
        if hidden.shape != delta.shape:
            raise ValueError(f"hidden is {[*hidden.shape]}, delta {[*delta.shape]}")
        out = torch.empty(hidden.shape)
        size = hidden.shape[-1]
        if hidden.numel():
            self._add_norm(
                hidden.data_ptr(),
                delta.data_ptr(),
                gain.data_ptr(),
                out.data_ptr(),
                hidden.numel() // size,
                size,
                eps,
                torch.get_num_threads(),
            )
        return out

    def gate(self, activation: str, gate_up: Tensor) -> Tensor:
        """See `Ops.gate`. Pure."""
        if not _is_plain(gate_up):
            return self._torch.gate(activation, gate_up)
        *before, size = gate_up.shape
        out = torch.empty((*before, size // 2))
        if gate_up.numel():
            self._gate(
                gate_up.data_ptr(),
                out.data_ptr(),
                gate_up.numel() // size,
                size // 2,
                GATES[activation],
                torch.get_num_threads(),
            )
        return out

    def layers(
        self, weights: Sequence[LayerWeights], shape: LayerShape, final_norm: Tensor
    ) -> Layers:
        """See `Ops.layers`."""
        return NativeLayers(self, weights, shape, final_norm)

    def place(
        self, hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
    ) -> Tensor | None:
        """See `Ops.place`. Changes: `hidden`."""
        return self._torch.place(hidden, features, starts, num_deep)

    def draw(self, logits: Tensor, rows: Sequence[RowSampling]) -> Draws:
        """See `Ops.draw`. The choices are there when it returns."""
        return self._torch.draw(logits, rows)


def _is_plain(values: Tensor) -> bool:
    """Whether the values lie in memory as the library reads them. Pure."""
    return values.dtype == torch.float32 and values.is_contiguous() and values.is_cpu


def check_against(ops: Ops, reference: Ops) -> None:
    """Raise Unbuildable if `ops` computes something else than `reference` on small inputs."""
    generator = torch.Generator().manual_seed(0)
    drawn = functools.partial(torch.randn, generator=generator)
    weight, bias, gain, hidden = drawn(45, 70), drawn(45), drawn(70), drawn(17, 70)
    pairs = {
        "norm": (ops.norm(hidden, gain, 1e-5), reference.norm(hidden, gain, 1e-5)),
        "add_norm": (
            ops.add_norm(hidden.clone(), hidden, gain, 1e-5),
            reference.add_norm(hidden.clone(), hidden, gain, 1e-5),
        ),
        "gate": (ops.gate("silu", hidden), reference.gate("silu", hidden)),
        "product": (
            ops.linear(weight, bias, activation="gelu")(hidden),
            reference.linear(weight, bias, activation="gelu")(hidden),
        ),
    }
    for bits in (8, 4):
        rounded = reference.linear(values_of(*codes_and_scales(weight, bits), 70))
        pairs[f"product of {bits} bits"] = (
            ops.linear(weight, bits=bits)(hidden),
            rounded(hidden),
        )
    for name, (found, expected) in pairs.items():
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise Unbuildable(f"the compiled {name} differs from torch's")
