"""InternVL: a tower that sees tiles one by one, neighbours merged into tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig, refuse
from mmserve.models.decoder import Decoder
from mmserve.models.hosted.eyes import HostedEyes, Tensors
from mmserve.models.ports import Model

__all__ = ["build"]


def build(checkpoint: Checkpoint) -> Model:
    """The lean decoder with transformers' tower and projector. Raises as `build_model`."""
    config = checkpoint.config
    if config.get("vision_feature_select_strategy", "default") != "default":
        strategy = config["vision_feature_select_strategy"]
        refuse("internvl", f"vision_feature_select_strategy {strategy!r}, only 'default'")
    if not isinstance(config.get("vision_feature_layer", -1), int):
        layers = config["vision_feature_layer"]
        refuse("internvl", f"vision_feature_layer {layers}, only features of one layer")
    text = {"model_type": "qwen2", **(config.get("text_config") or {})}
    text["tie_word_embeddings"] = bool(config.get("tie_word_embeddings", True))
    weights = checkpoint.weights()
    decoder = Decoder(DecoderConfig.parse(text), weights)
    weights.finish(ignored=["vision.", "projector."])
    eyes = HostedEyes(checkpoint, _features)
    return Model("internvl", decoder, eyes, int(config.get("image_token_id", 151667)))


def _features(model: Any, items: Sequence[Tensors]) -> list[Tensor]:  # noqa: ANN401
    """[tiles * K, E] of each item; all tiles go through the tower together."""
    tiles = [item["pixel_values"] for item in items]
    features = model.model.get_image_features(pixel_values=torch.cat(tiles)).pooler_output
    each = features.split([len(some) for some in tiles])
    return [some.flatten(0, 1) for some in each]
