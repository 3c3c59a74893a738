"""Encoded pictures put over the embeddings of their placeholders, for twins to equal."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

__all__ = ["place"]


def place(
    hidden: Tensor, features: Sequence[Tensor], starts: Sequence[int], num_deep: int
) -> Tensor | None:
    """See `Ops.place`. Changes: `hidden`. Cost: a copy or two for each picture."""
    if not features:
        return None
    width = hidden.shape[1]
    deep = hidden.new_zeros((num_deep, *hidden.shape)) if num_deep else None
    for start, each in zip(starts, features, strict=True):
        end = start + len(each)
        hidden[start:end] = each[:, :width]
        if deep is not None:
            sets = each[:, width:].unflatten(1, (num_deep, width))
            deep[:, start:end] = sets.transpose(0, 1)
    return deep
