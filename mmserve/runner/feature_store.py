"""The store of encoded pictures: obeys the ledger of the planning wing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from mmserve.core import EncodeItem, FeatureUse
from mmserve.models import PictureEncoder

__all__ = ["FeatureStore"]

_MAX_ENCODE_PATCHES = 2400
"""Patches encoded at once: few enough for the caches, enough for the matrix products."""


class FeatureStore:
    """Encoded items [K, E * (1 + num_deep)] by digest.

    Args:
        encoder: the model's picture encoder, or None for a text-only model.
    """

    def __init__(self, encoder: PictureEncoder | None) -> None:
        self._encoder = encoder
        self._features: dict[bytes, Tensor] = {}

    def __len__(self) -> int:
        return len(self._features)

    def drop(self, digests: Sequence[bytes]) -> None:
        """Free features; an unknown digest is no error. Changes: the store."""
        for digest in digests:
            self._features.pop(digest, None)

    def encode(self, items: Sequence[EncodeItem]) -> None:
        """Encode items in batches and keep them. Changes: the store. Raises ValueError."""
        if not items:
            return
        if self._encoder is None:
            raise ValueError("the model sees no pictures")
        for batch in _batches(items):
            features = self._encoder.encode([item.inputs for item in batch])
            for item, feature in zip(batch, features, strict=True):
                self._features[item.digest] = feature.clone()

    def take(self, use: FeatureUse) -> Tensor:
        """Features [n, E * (1 + num_deep)] of a use, a view. Raises ValueError if not there."""
        feature = self._features.get(use.digest)
        end = use.feature_start + use.num_tokens
        if feature is None or end > len(feature):
            held = 0 if feature is None else len(feature)
            message = (
                f"features [{use.feature_start}, {end}) asked of a picture with {held} tokens"
            )
            raise ValueError(message)
        return feature[use.feature_start : end]


def _batches(items: Sequence[EncodeItem]) -> Iterator[list[EncodeItem]]:
    """Items in order, in groups of at most so many patches, or one item."""
    batch: list[EncodeItem] = []
    num_patches = 0
    for item in items:
        if batch and num_patches + item.num_patches > _MAX_ENCODE_PATCHES:
            yield batch
            batch, num_patches = [], 0
        batch.append(item)
        num_patches += item.num_patches
    if batch:
        yield batch
