"""The store of encoded pictures: obeys the ledger of the planning wing."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmserve.core import EncodeItem, FeatureUse
from mmserve.models import PictureEncoder

__all__ = ["FeatureStore"]

_MAX_ENCODE_TOKENS = 2400
"""Picture tokens encoded at once: few enough for the caches, enough for the matrix products."""


class FeatureStore:
    """Encoded pictures [K, E] by digest.

    Args:
        encoder: the model's picture encoder, or None for a text-only model.
        dtype: of pixels on the device.
        device: where features lie.
    """

    def __init__(
        self, encoder: PictureEncoder | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._encoder = encoder
        self._dtype = dtype
        self._device = device
        self._features: dict[bytes, Tensor] = {}

    def __len__(self) -> int:
        return len(self._features)

    def drop(self, digests: Sequence[bytes]) -> None:
        """Free features; an unknown digest is no error. Changes: the store."""
        for digest in digests:
            self._features.pop(digest, None)

    def encode(self, items: Sequence[EncodeItem]) -> None:
        """Encode pictures in batches and keep them. Changes: the store. Raises ValueError."""
        if not items:
            return
        if self._encoder is None:
            raise ValueError("the model sees no pictures")
        step = max(1, _MAX_ENCODE_TOKENS // self._encoder.config.tokens_per_image)
        for first in range(0, len(items), step):
            batch = items[first : first + step]
            pixels = torch.stack([self._pixels(self._encoder, item) for item in batch])
            features = self._encoder.encode(pixels)
            for item, feature in zip(batch, features, strict=True):
                self._features[item.digest] = feature.clone()

    def place(self, hidden: Tensor, first: int, use: FeatureUse) -> None:
        """Put features over the embeddings of a row that begins at token `first` of the step.

        Changes: `hidden` [T, E]. Raises ValueError if the features are not there.
        """
        feature = self._features.get(use.digest)
        end = use.feature_start + use.num_tokens
        if feature is None or end > len(feature):
            held = 0 if feature is None else len(feature)
            message = (
                f"features [{use.feature_start}, {end}) asked of a picture with {held} tokens"
            )
            raise ValueError(message)
        start = first + use.row_start
        hidden[start : start + use.num_tokens] = feature[use.feature_start : end]

    def _pixels(self, encoder: PictureEncoder, item: EncodeItem) -> Tensor:
        pixels = torch.tensor(
            item.inputs["pixel_values"], dtype=self._dtype, device=self._device
        )
        if tuple(pixels.shape) != encoder.pixel_shape:
            message = (
                f"pixels of shape {tuple(pixels.shape)}, the model takes {encoder.pixel_shape}"
            )
            raise ValueError(message)
        return pixels
