"""Text models whose arithmetic is the lean decoder's."""

from __future__ import annotations

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig
from mmserve.models.decoder import Decoder
from mmserve.models.ports import Model

__all__ = ["build"]


def build(checkpoint: Checkpoint) -> Model:
    """The decoder alone. Raises UnsupportedModel, WeightMismatch."""
    config = DecoderConfig.parse(checkpoint.config, context_length=checkpoint.context_length)
    weights = checkpoint.weights()
    decoder = Decoder(config, weights)
    weights.finish()
    return Model(checkpoint.family, decoder)
