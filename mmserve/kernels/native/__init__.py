"""Kernels in C, compiled for this processor at the first start; a CPU in float32 only.

Everything here equals its torch twin within rounding, and gives a row the same result alone and
among others: to the bit, or where the processor has matrix tiles, to the last bits.

    sources/*.c -> build -> library -> NativeLinear, NativeOps
"""

from mmserve.kernels.native.build import Unbuildable
from mmserve.kernels.native.linear import NativeLinear, tile_rows
from mmserve.kernels.native.ops import NativeOps

__all__ = ["NativeLinear", "NativeOps", "Unbuildable", "tile_rows"]
