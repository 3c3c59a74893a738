# mypy: disallow-untyped-decorators=False
"""Encoded pictures put over the embeddings of their placeholders, a step in one launch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from mmserve.kernels.triton.staging import to_device

__all__ = ["place_features", "scatter_kernel"]

_COLUMNS = 1024
_NUM_WARPS = 4


def place_features(
    hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
) -> Tensor | None:
    """See `Ops.place`; pictures are of the dtype of `hidden`. Changes: `hidden`.

    Cost: one transfer of two whole numbers a row, and one launch.
    """
    if not features:
        return None
    num_tokens, width = hidden.shape
    deep = hidden.new_zeros((num_deep, num_tokens, width)) if num_deep else None
    sources = np.concatenate([_addresses(each) for each in features])
    pairs = zip(starts, features, strict=True)
    targets = np.concatenate([np.arange(start, start + len(each)) for start, each in pairs])
    if len(targets) == 0:
        return deep
    table = to_device(np.stack([sources, targets]).astype(np.int64), hidden.device)
    grid = (len(targets), triton.cdiv(width, _COLUMNS), 1 + num_deep)
    scatter_kernel[grid](
        table,
        hidden,
        hidden if deep is None else deep,
        len(targets),
        num_tokens,
        width,
        columns=_COLUMNS,
        num_warps=_NUM_WARPS,
    )
    return deep


def _addresses(features: Tensor) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each row begins in memory. Pure."""
    step = features.stride(0) * features.element_size()
    return features.data_ptr() + step * np.arange(len(features), dtype=np.int64)


@triton.jit
def scatter_kernel(
    table: tl.tensor,
    hidden: tl.tensor,
    deep: tl.tensor,
    num_rows: tl.tensor,
    num_tokens: tl.tensor,
    width: tl.tensor,
    columns: tl.constexpr,
) -> None:
    """Some values of one row of one set; `table` int64 [2, num_rows]: address, token.

    Changes: `hidden` by set 0, `deep` by the others.
    """
    row, number = tl.program_id(0), tl.program_id(2)
    column = tl.program_id(1) * columns + tl.arange(0, columns)
    inside = column < width
    source = tl.load(table + row).to(hidden.dtype)
    token = tl.load(table + num_rows + row)
    values = tl.load(source + number * width + column, mask=inside, other=0.0)
    if number == 0:
        tl.store(hidden + token * width + column, values, mask=inside)
    else:
        place = ((number - 1).to(tl.int64) * num_tokens + token) * width
        tl.store(deep + place + column, values, mask=inside)
