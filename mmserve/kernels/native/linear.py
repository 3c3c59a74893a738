"""Matrix products in compiled C: full weights, and weights of 8 or 4 bits.

A row's result is the same to the bit for any number of threads, and alone and among others;
on a processor with matrix tiles, alone and among few, and among many and among other many.
`sources/products.c` and `sources/matrix.c` tell how and why.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from mmserve.kernels.native.library import native_library

__all__ = ["NativeLinear", "codes_and_scales", "tile_rows", "values_of"]

_BLOCK = 32
_KINDS = {
    None: 0,
    "gelu": 1,
    "gelu_pytorch_tanh": 2,
    "gelu_new": 2,
    "quick_gelu": 3,
    "relu": 4,
    "silu": 5,
}
_LARGE_PAGE_BYTES = 2 << 20
_CHUNK_ROWS = 4096
"""Outputs whose weights are coded at once, which bounds the memory for it."""


class _Product(ctypes.Structure):
    """`struct product` of `sources/parts.h`."""

    _fields_ = (
        ("panels", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("num_inputs", ctypes.c_int64),
        ("num_outputs", ctypes.c_int64),
        ("bits", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("parts", ctypes.c_int32),
    )


class NativeLinear:
    """activation(x @ weight.T + bias) on a CPU in float32, the weight packed once.

    Args:
        weight: [out, in] in any float dtype; the caller may drop it.
        bias: [out] or None.
        activation: name of a function as checkpoints spell it, or None.
        bits: 8 or 4: codes of so many bits and a bfloat16 scale for every 32 inputs; None: as
            it is.

    Raises Unbuildable: there is no library. KeyError: the activation is not known.
    """

    __slots__ = (
        "_address",
        "_bias",
        "_compute",
        "_panels",
        "_record",
        "_scales",
        "num_inputs",
        "num_outputs",
        "num_parts",
    )

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        activation: str | None = None,
        bits: int | None = None,
    ) -> None:
        library = native_library()
        width = library.mmserve_panel_width()
        self.num_outputs, self.num_inputs = weight.shape
        self._scales: Tensor | None = None
        if bits is None:
            self._panels = _kept(_panels(weight.float(), width))
        else:
            codes, scales = codes_and_scales(weight, bits)
            self._panels = _kept(_panels(codes, width) if bits == 8 else _pairs(codes, width))
            self._scales = _panels(scales, width).contiguous()
        self._bias: Tensor | None = None
        if bias is not None:
            self._bias = bias.new_zeros(-(-len(bias) // width) * width, dtype=torch.float32)
            self._bias[: len(bias)] = bias
        self.num_parts = _num_parts(self._panels)
        self._record = _Product(
            self._panels.data_ptr(),
            None if self._scales is None else self._scales.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.num_inputs,
            self.num_outputs,
            bits or 32,
            _KINDS[activation],
            self.num_parts,
        )
        self._address = ctypes.addressof(self._record)
        self._compute = library.mmserve_product

    @property
    def address(self) -> int:
        """Where the library finds it; valid as long as this is."""
        return self._address

    def __call__(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out] of the same dtype. Pure."""
        if x.dtype != torch.float32:
            return self(x.float()).to(x.dtype)
        *before, num_inputs = x.shape
        if num_inputs != self.num_inputs:
            raise ValueError(f"{num_inputs} inputs, the weight has {self.num_inputs}")
        if not x.is_contiguous():
            x = x.contiguous()
        out = torch.empty((*before, self.num_outputs))
        rows = x.numel() // num_inputs
        if rows:
            threads = torch.get_num_threads()
            if self._compute(x.data_ptr(), out.data_ptr(), rows, self._address, threads):
                raise MemoryError("no room for the parts of a product's rows")
        return out


def tile_rows() -> int | None:
    """From how many rows on the processor's matrix tiles compute; None: it has none. Pure."""
    return native_library().mmserve_tile_rows() or None


def _num_parts(panels: Tensor) -> int:
    """How many bfloat16 values each weight is the sum of, by cutting its bits. Pure."""
    if panels.dtype != torch.float32:
        return 2  # a code of 8 bits times a scale of 8
    bits = panels.view(torch.int32)
    return 1 if not (bits & 0xFFFF).any() else 2 if not (bits & 0xFF).any() else 3


def codes_and_scales(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """A weight in blocks of 32 inputs: each value is nearly code * scale.

    Args:
        weight: [out, in] in any float dtype.
        bits: 8 or 4.

    Returns:
        Codes int8 [out, in up to 32], scales bfloat16 [out, in / 32]. A scale is rounded before
        codes are chosen for it. Pure.
    """
    if bits not in (8, 4):
        raise ValueError(f"bits is {bits}, known are 8 and 4")
    parts = [_coded(part.float(), bits) for part in weight.split(_CHUNK_ROWS)]
    return torch.cat([codes for codes, _ in parts]), torch.cat([scales for _, scales in parts])


def values_of(codes: Tensor, scales: Tensor, num_inputs: int) -> Tensor:
    """The weight float32 [out, in] that codes and scales stand for, exactly. Pure."""
    blocks = codes.view(*scales.shape, _BLOCK).float() * scales.float().unsqueeze(2)
    return blocks.flatten(1)[:, :num_inputs]


def _coded(weight: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    top = (1 << bits - 1) - 1
    padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % _BLOCK))
    blocks = padded.view(len(weight), -1, _BLOCK)
    scales = (blocks.abs().amax(2) / top).to(torch.bfloat16)
    steps = torch.where(scales == 0, 1.0, scales.float()).unsqueeze(2)
    codes = (blocks / steps).round_().clamp_(-top, top).to(torch.int8)
    return codes.view(padded.shape), scales


def _panels(values: Tensor, width: int) -> Tensor:
    """[out, n] as [panels, n, width], zeros where the last panel is not full. Pure."""
    padded = torch.nn.functional.pad(values, (0, 0, 0, -len(values) % width))
    return padded.view(-1, width, values.shape[1]).transpose(1, 2)


def _pairs(codes: Tensor, width: int) -> Tensor:
    """Codes int8 [out, n] as uint8 [panels, n / 2, width], the even input's half low. Pure."""
    panels = _panels(codes, width)
    return ((panels[:, 0::2] & 15) | (panels[:, 1::2] << 4)).view(torch.uint8)


def _kept(values: Tensor) -> Tensor:
    """A contiguous copy, in large pages if it is large.

    Without these a stream from memory waits for a page's address every 4 KiB.
    """
    num_bytes = values.numel() * values.element_size()
    if num_bytes < _LARGE_PAGE_BYTES:
        return torch.empty(values.shape, dtype=values.dtype).copy_(values)
    room = torch.empty(num_bytes + _LARGE_PAGE_BYTES, dtype=torch.uint8)
    first = -room.data_ptr() % _LARGE_PAGE_BYTES
    native_library().mmserve_large_pages(room.data_ptr() + first, num_bytes)
    kept = room[first : first + num_bytes].view(values.dtype).view(values.shape)
    return kept.copy_(values)
