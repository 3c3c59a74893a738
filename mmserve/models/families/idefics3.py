"""Idefics3 and SmolVLM: a tower that sees tiles one by one, neighbours merged into tokens."""

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
    """The lean decoder with transformers' tower and connector. Raises as `build_model`."""
    config = checkpoint.config
    vision = config.get("vision_config") or {}
    for field in ("image_size", "patch_size"):
        if not isinstance(vision.get(field, 1), int):
            refuse(checkpoint.family, f"vision_config.{field} {vision[field]}, not a number")
    text = dict(config.get("text_config") or {"rms_norm_eps": 1e-5})
    text["tie_word_embeddings"] = bool(config.get("tie_word_embeddings", False))
    weights = checkpoint.weights()
    decoder = Decoder(DecoderConfig.parse(text), weights)
    weights.finish(ignored=["vision.", "projector."])
    eyes = HostedEyes(checkpoint, _features)
    image_token_id = int(config.get("image_token_id", 128257))
    return Model(checkpoint.family, decoder, eyes, image_token_id)


def _features(model: Any, items: Sequence[Tensors]) -> list[Tensor]:  # noqa: ANN401
    """[tiles * K, E] of each item; all tiles go through the tower together.

    Tower and connector are asked directly: transformers' own way from pixels to features takes
    tiles whose values are all zero for padding, and leaves them out.
    """
    tiles = [item["pixel_values"] for item in items]
    seen = model.model.vision_model(pixel_values=torch.cat(tiles)).last_hidden_state
    features = model.model.connector(seen)
    each = features.split([len(some) for some in tiles])
    return [some.flatten(0, 1) for some in each]
