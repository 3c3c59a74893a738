"""Matrix products with weights that stay: packed once, multiplied in every step."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

__all__ = ["Linear"]


class Linear:
    """x @ weight.T + bias with a weight laid out for the device.

    On a CPU in float32 the weight is reordered for oneDNN: on AVX2, one thread, [512 x 2752],
    it takes 0.7 ms instead of 1.4 for 8 rows, 3.1 instead of 3.4 for 128, and 0.6 instead of
    0.5 for one row. The relative difference to the plain product is about 4e-7.

    Args:
        weight: [out, in]; the caller may drop it.
        bias: [out] or None.
    """

    __slots__ = ("_bias", "_is_packed", "_weight", "num_inputs", "num_outputs")

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self._bias = bias
        self._is_packed = (
            weight.device.type == "cpu"
            and weight.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
        )
        if self._is_packed:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self._weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], same dtype and device. Pure."""
        if not self._is_packed:
            return F.linear(x, self._weight, self._bias)
        if x.numel() == 0:
            return x.new_empty((*x.shape[:-1], self.num_outputs))
        return torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
