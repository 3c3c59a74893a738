"""Features of encoded pictures put over the embeddings of their placeholders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.core import FeatureUse, PlanRow

__all__ = ["Placed", "needs_index", "places_of", "put_features", "token_index"]

Placed = tuple[int, FeatureUse]
"""The first token, of the step's, that a use stands over."""
_MANY = 4
"""Uses from which one gather and one scatter cost less than a copy for each (on a GPU)."""


def places_of(rows: Sequence[PlanRow], firsts: NDArray[np.int64]) -> list[Placed]:
    """Every use of the step with its first token. Pure."""
    return [
        (first + use.row_start, use)
        for first, row in zip(firsts.tolist(), rows, strict=True)
        for use in row.features
    ]


def needs_index(placed: Sequence[Placed], device: torch.device) -> bool:
    """Whether `put_features` is faster with `token_index`. Pure."""
    return device.type != "cpu" and len(placed) >= _MANY


def put_features(
    hidden: Tensor,
    placed: Sequence[Placed],
    take: Callable[[FeatureUse], Tensor],
    num_deep: int,
    index: Tensor | None = None,
) -> Tensor | None:
    """Put features over embeddings; what early layers add, [num_deep, T, E], if anything.

    Args:
        hidden: [T, E]. Changes: gets the features.
        placed: where each use stands; uses do not overlap.
        take: gives the features [n, E * (1 + num_deep)] of a use.
        num_deep: sets of features beside the embeddings.
        index: `token_index` of `placed` on the device; None: a copy for each use.
    """
    if not placed:
        return None
    width = hidden.shape[1]
    deep = hidden.new_zeros((num_deep, *hidden.shape)) if num_deep else None
    if index is not None:
        _put(hidden, deep, index, torch.cat([take(use) for _, use in placed]), width)
        return deep
    for start, use in placed:
        features = take(use)
        end = start + use.num_tokens
        hidden[start:end] = features[:, :width]
        if deep is not None:
            sets = features[:, width:].unflatten(1, (num_deep, width))
            deep[:, start:end] = sets.transpose(0, 1)
    return deep


def token_index(placed: Sequence[Placed]) -> NDArray[np.int64]:
    """int64 [n], the token under each row of the features, use by use. Pure."""
    starts = np.array([start for start, _ in placed], dtype=np.int64)
    sizes = np.array([use.num_tokens for _, use in placed], dtype=np.int64)
    ends = np.cumsum(sizes)
    return np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - (ends - sizes), sizes)


def _put(
    hidden: Tensor, deep: Tensor | None, index: Tensor, features: Tensor, width: int
) -> None:
    """Changes: `hidden` and `deep`, at `index`."""
    hidden.index_copy_(0, index, features[:, :width])
    if deep is not None:
        sets = features[:, width:].unflatten(1, (len(deep), width))
        deep.index_copy_(1, index, sets.transpose(0, 1))
