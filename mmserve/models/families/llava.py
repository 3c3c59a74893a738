"""LLaVA's eyes: tower and projector, pixels in, embeddings of the decoder out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import LlavaConfig
from mmserve.models.decoder import Decoder
from mmserve.models.ports import Inputs, Model
from mmserve.models.tower import Tower
from mmserve.models.weights import Weights

__all__ = ["LlavaEyes", "build"]


class LlavaEyes:
    """A loaded tower with its projector. Immutable.

    Args:
        config: shapes and which features are read.
        weights: the checkpoint; names under `vision.` and `projector.`.
    """

    def __init__(self, config: LlavaConfig, weights: Weights) -> None:
        self.config = config
        self._dtype, self._device = weights.dtype, weights.device
        self._tower = Tower(config.tower, config.feature_depths, weights)
        width, has_bias = config.text.hidden_size, config.has_projector_bias
        joined = config.tower.hidden_size * len(config.feature_depths)
        self._first = weights.linear(
            ["projector.linear_1"],
            [width],
            joined,
            has_bias=has_bias,
            activation=config.projector_activation,
        )
        self._second = weights.linear(["projector.linear_2"], [width], width, has_bias=has_bias)

    def encode(self, items: Sequence[Inputs]) -> list[Tensor]:
        """See `PictureEncoder.encode`; items are {"pixel_values": float32 [C, S, S]}."""
        pixels = torch.stack([self._pixels(item) for item in items])
        features = self._tower.forward(pixels)
        if not self.config.keeps_class_token:
            features = features[:, 1:]
        return list(self._second(self._first(features)).unbind(0))

    def _pixels(self, item: Inputs) -> Tensor:
        tower = self.config.tower
        wanted = (tower.num_channels, tower.image_size, tower.image_size)
        pixels = torch.tensor(item["pixel_values"], dtype=self._dtype, device=self._device)
        if tuple(pixels.shape) != wanted:
            message = f"pixels of shape {tuple(pixels.shape)}, the model takes {wanted}"
            raise ValueError(message)
        return pixels


def build(checkpoint: Checkpoint) -> Model:
    """LLaVA-1.5 with the lean decoder and a tower of our own. Raises as `build_model`."""
    config, weights = LlavaConfig.parse(checkpoint.config), checkpoint.weights()
    decoder, eyes = Decoder(config.text, weights), LlavaEyes(config, weights)
    deeper = range(max(config.feature_depths), config.tower.num_layers)
    unread = [f"vision.encoder.layers.{number}." for number in deeper]
    weights.finish(ignored=["vision.post_layernorm.", "vision.head.", *unread])
    return Model("llava", decoder, eyes, config.image_token_id)
