"""LLaVA's eyes: tower and projector, pixels in, embeddings of the decoder out."""

from __future__ import annotations

from torch import Tensor

from mmserve.models.config import LlavaConfig
from mmserve.models.tower import Tower
from mmserve.models.weights import Weights

__all__ = ["PictureEncoder"]


class PictureEncoder:
    """A loaded tower with its projector. Immutable.

    Args:
        config: shapes and which features are read.
        weights: the checkpoint; names under `vision.` and `projector.`.
    """

    def __init__(self, config: LlavaConfig, weights: Weights) -> None:
        self.config = config
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

    @property
    def pixel_shape(self) -> tuple[int, int, int]:
        """[C, S, S] that one picture's pixels must have."""
        tower = self.config.tower
        return (tower.num_channels, tower.image_size, tower.image_size)

    def encode(self, pixels: Tensor) -> Tensor:
        """[n, K, E] embeddings of [n, C, S, S] processed pixels, K = tokens_per_image. Pure."""
        features = self._tower.forward(pixels)
        if not self.config.keeps_class_token:
            features = features[:, 1:]
        return self._second(self._first(features))
