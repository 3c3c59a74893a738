"""Matrix products with weights of 8 or 4 bits where no kernels of our own compute them.

    weight row   | 32 values | 32 values | ...      code * scale, one scale a block
    input row    taken as it is (CUDA), or in blocks of 8 bits for the product alone (CPU)

On a CPU the product is onnxruntime's MatMulNBits, on a GPU torchao's; `kernels/native` has its
own. A row's result is the same to the bit alone and among others; that of torch's dynamic int8
product is not, which scales all rows of a call by one number (docs/decisions/0033).
"""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmserve.core import MissingExtra
from mmserve.kernels.elementwise import activation as activated

__all__ = ["QuantizedLinear"]

_log = logging.getLogger(__name__)

_BLOCK = 32
_OPSET = 17


class QuantizedLinear:
    """activation(x @ weight.T + bias) with the weight in blocks of `bits` bits.

    Args:
        weight: [out, in] in any float dtype; the caller may drop it.
        bias: [out] or None.
        bits: 8 or 4.
        activation: name of a function as checkpoints spell it, or None.

    Raises MissingExtra without the device's library.
    """

    __slots__ = ("_activation", "_bias", "_product", "num_inputs", "num_outputs")

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        bits: int,
        activation: str | None = None,
    ) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self._activation = activation
        self._bias = bias
        make = _CpuProduct if weight.device.type == "cpu" else _CudaProduct
        self._product = make(weight, bits)

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out], same dtype and device. Pure."""
        flat = x.reshape(-1, self.num_inputs)
        out = self._product(flat) if len(flat) else flat.new_empty((0, self.num_outputs))
        out = out.view(*x.shape[:-1], self.num_outputs)
        if self._bias is not None:
            out = out + self._bias
        return out if self._activation is None else activated(self._activation, out)


class _CpuProduct:
    """[M, in] to [M, out] by onnxruntime, float32 inside.

    A call with arrays costs 10 us beside the product, one that binds memory anew 45 us.
    """

    def __init__(self, weight: Tensor, bits: int) -> None:
        codes, scales = _blocks(weight.float().numpy(), bits)
        self._session = _session(codes, scales, weight.shape[1], bits)

    def __call__(self, x: Tensor) -> Tensor:
        (out,) = self._session.run(None, {"x": x.float().contiguous().numpy()})
        return torch.from_numpy(out).to(x.dtype)


class _CudaProduct:
    """[M, in] to [M, out] by torchao's weight-only kernels."""

    def __init__(self, weight: Tensor, bits: int) -> None:
        library = _import("torchao.quantization", "torchao", "cuda")
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        ways = {8: library.Int8WeightOnlyConfig, 4: library.Int4WeightOnlyConfig}
        options = {"group_size": _BLOCK} if bits == 4 else {}
        library.quantize_(layer, ways[bits](**options))
        self._layer = layer

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = self._layer(x)
        return out


def _blocks(
    weight: np.ndarray[Any, Any], bits: int
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Codes uint8 [out, blocks, 32 * bits / 8] and scales float32 [out * blocks]. Pure.

    Rounded to nearest, symmetric about the middle code, which stands for 0.
    """
    num_outputs, num_inputs = weight.shape
    padded = np.pad(weight, ((0, 0), (0, -num_inputs % _BLOCK)))
    blocks = padded.reshape(num_outputs, -1, _BLOCK)
    top = (1 << bits - 1) - 1
    scales = np.abs(blocks).max(axis=2).astype(np.float32) / top
    steps = np.where(scales > 0, scales, 1)[..., None]
    codes = (np.rint(blocks / steps) + top + 1).astype(np.uint8)
    if bits == 4:
        codes = codes[..., 0::2] + 16 * codes[..., 1::2]
    return codes, scales.reshape(-1)


def _session(
    codes: np.ndarray[Any, Any], scales: np.ndarray[Any, Any], num_inputs: int, bits: int
) -> Any:  # noqa: ANN401 - of an optional package
    """An onnxruntime session of the one product; blocks of the input are 8 bits inside."""
    onnx, ort = _import("onnx", "onnx", "quant"), _runtime()
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node(
        "MatMulNBits",
        ["x", "codes", "scales"],
        ["y"],
        domain="com.microsoft",
        K=num_inputs,
        N=len(codes),
        bits=bits,
        block_size=_BLOCK,
        accuracy_level=4,
    )
    graph = helper.make_graph(
        [node],
        "product",
        [helper.make_tensor_value_info("x", number, ["rows", num_inputs])],
        [helper.make_tensor_value_info("y", number, ["rows", len(codes)])],
        [
            onnx.numpy_helper.from_array(codes, "codes"),
            onnx.numpy_helper.from_array(scales, "scales"),
        ],
    )
    sets = [helper.make_opsetid("", _OPSET), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@functools.cache
def _runtime() -> Any:  # noqa: ANN401 - as above
    """onnxruntime, with one pool of as many threads as torch has for all sessions."""
    ort = _import("onnxruntime", "onnxruntime", "quant")
    try:
        ort.set_global_thread_pool_sizes(torch.get_num_threads(), 1)
    except RuntimeError:  # the program has used it before, with a pool of its own
        _log.info("onnxruntime keeps the threads that it has")
    return ort


def _import(name: str, package: str, extra: str) -> Any:  # noqa: ANN401 - an optional package
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"weights of 8 or 4 bits need the package {package!r}, which is not installed",
            hint=f'pip install "mmserve[{extra}]"',
            package=package,
            extra=extra,
        ) from error
