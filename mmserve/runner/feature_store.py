"""The store of encoded pictures: obeys the ledger of the planning wing.

On a GPU pictures are encoded on a stream of their own, beside the rows of the same step:

    encoder's stream   |== encode ==|ready
    main stream   |== rows without it ==|  ... take: waits for ready |== rows with it ==|
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmserve.core import EncodeItem, FeatureUse
from mmserve.models import PictureEncoder
from mmserve.runner.clock import Mark

__all__ = ["FeatureStore"]

_MAX_ENCODE_PATCHES = 2400
"""Patches encoded at once: few enough for the caches, enough for the matrix products."""
_CPU = torch.device("cpu")


@dataclass(slots=True, eq=False)
class _Held:
    """Features [K, E * (1 + num_deep)], and when they are ready; None once that was awaited."""

    features: Tensor
    ready: Mark | None


class FeatureStore:
    """Encoded items by digest.

    Args:
        encoder: the model's picture encoder, or None for a text-only model.
        device: where it computes.
    """

    def __init__(self, encoder: PictureEncoder | None, device: torch.device = _CPU) -> None:
        self._encoder = encoder
        self._device = device
        self._held: dict[bytes, _Held] = {}
        is_aside = device.type == "cuda" and encoder is not None
        self._stream = torch.cuda.Stream(device) if is_aside else None

    def __len__(self) -> int:
        return len(self._held)

    def drop(self, digests: Sequence[bytes]) -> None:
        """Free features; an unknown digest is no error. Changes: the store."""
        for digest in digests:
            self._held.pop(digest, None)

    def encode(self, items: Sequence[EncodeItem]) -> tuple[Mark, Mark] | None:
        """Begin to encode items in batches, and keep them; the moments of beginning and end.

        Changes: the store. Raises ValueError.
        """
        if not items:
            return None
        if self._stream is None:
            began = Mark(self._device)
            self._encode(items)
            return began, Mark(self._device)
        main = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(main)
        with torch.cuda.stream(self._stream):
            began = Mark(self._device)
            for held in self._encode(items):
                held.features.record_stream(main)
            ended = Mark(self._device)
        return began, ended

    def _encode(self, items: Sequence[EncodeItem]) -> list[_Held]:
        """Changes: the store."""
        if self._encoder is None:
            raise ValueError("the model sees no pictures")
        new: list[_Held] = []
        for batch in _batches(items):
            features = self._encoder.encode([item.inputs for item in batch])
            kept = [feature.clone() for feature in features]
            ready = None if self._stream is None else Mark(self._device)
            for item, feature in zip(batch, kept, strict=True):
                self._held[item.digest] = held = _Held(feature, ready)
                new.append(held)
        return new

    def take(self, use: FeatureUse) -> Tensor:
        """Features [n, E * (1 + num_deep)] of a use, a view. Raises ValueError if not there.

        The current stream waits until they are ready. Changes: nothing that can be seen.
        """
        held = self._held.get(use.digest)
        end = use.feature_start + use.num_tokens
        if held is None or end > len(held.features):
            num = 0 if held is None else len(held.features)
            message = (
                f"features [{use.feature_start}, {end}) asked of a picture with {num} tokens"
            )
            raise ValueError(message)
        if held.ready is not None:
            held.ready.hold_up()
            held.ready = None
        return held.features[use.feature_start : end]


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
