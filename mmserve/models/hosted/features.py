"""Features of pictures as any family of transformers gives them: by its own method."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import Tensor

from mmserve.models.hosted.eyes import Foreign, Tensors

__all__ = ["features_alone", "features_together"]


def features_alone(model: Foreign, items: Sequence[Tensors]) -> list[Tensor]:
    """[K, E] features of each item, encoded one after the other. Pure.

    Items are what the family's processor makes of one picture, as a batch of one. Raises
    ValueError if the family gives no features by itself.
    """
    return [_features(model, item) for item in items]


def features_together(model: Foreign, items: Sequence[Tensors]) -> list[Tensor]:
    """The same of items in one batch, where all have equal shapes. Pure."""
    shapes = {tuple((name, item[name].shape) for name in sorted(item)) for item in items}
    if len(items) == 1 or len(shapes) > 1:
        return features_alone(model, items)
    joined = {name: torch.cat([item[name] for item in items]) for name in items[0]}
    features = _features(model, joined)
    return list(features.chunk(len(items)))


def _features(model: Foreign, item: Tensors) -> Tensor:
    """[K, E] of all pictures in a batch, in order."""
    for owner in (model, model.base_model):
        if hasattr(owner, "get_image_features"):
            known = inspect.signature(owner.get_image_features).parameters
            taken = {name: value for name, value in item.items() if name in known}
            return _rows(owner.get_image_features(**taken))
    raise ValueError("its pictures are not features in the places of tokens")


def _rows(found: Foreign) -> Tensor:
    """Whatever a family gives, as [K, E]: of outputs what was pooled last. Pure."""
    if hasattr(found, "last_hidden_state"):
        pooled = found.pooler_output
        found = found.last_hidden_state if pooled is None else pooled
    if torch.is_tensor(found):
        return found.flatten(0, -2)
    return torch.cat([_rows(part) for part in found])
