"""LLaVA's eyes: tower and projector, pixels in, embeddings of the decoder out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import LlavaConfig
from mmserve.models.decoder import Decoder
from mmserve.models.placing import placed
from mmserve.models.ports import Inputs, Model
from mmserve.models.tower import Tower
from mmserve.models.weights import Weights

__all__ = ["LlavaEyes", "build", "unread"]


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
        pixels = torch.stack([self.pixels(item["pixel_values"]) for item in items])
        return list(self.project(self.see(pixels)).unbind(0))

    def pixels(self, values: NDArray[Any]) -> Tensor:
        """[..., C, S, S] as the tower takes it. Raises ValueError for another shape."""
        tower = self.config.tower
        wanted = (tower.num_channels, tower.image_size, tower.image_size)
        pixels = placed(values, self._device, self._dtype)
        if tuple(pixels.shape[-3:]) != wanted:
            message = f"pixels of shape {tuple(pixels.shape)}, the model takes {wanted}"
            raise ValueError(message)
        return pixels

    def see(self, pixels: Tensor) -> Tensor:
        """[n, K, width of the tower's features] of [n, C, S, S] pictures. Pure."""
        features = self._tower.forward(pixels)
        return features if self.config.keeps_class_token else features[:, 1:]

    def project(self, features: Tensor) -> Tensor:
        """[..., E] embeddings of what `see` gives. Pure."""
        return self._second(self._first(features))


def build(checkpoint: Checkpoint) -> Model:
    """LLaVA-1.5 with the lean decoder and a tower of our own. Raises as `build_model`."""
    config, weights = LlavaConfig.parse(checkpoint.config), checkpoint.weights()
    decoder, eyes = Decoder(config.text, weights), LlavaEyes(config, weights)
    weights.finish(ignored=unread(config))
    return Model("llava", decoder, eyes, config.image_token_id)


def unread(config: LlavaConfig) -> list[str]:
    """Beginnings of names of tensors that lie behind the features read. Pure."""
    deeper = range(max(config.feature_depths), config.tower.num_layers)
    layers = [f"vision.encoder.layers.{number}." for number in deeper]
    return ["vision.post_layernorm.", "vision.head.", *layers]
