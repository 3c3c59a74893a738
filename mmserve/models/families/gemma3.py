"""Gemma 3 with pictures: the lean decoder, hosted eyes.

Features of pictures stand among embeddings that the decoder has scaled already; they are not
scaled themselves. That a picture's tokens see each other both ways comes with its span.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig
from mmserve.models.decoder import Decoder
from mmserve.models.hosted.eyes import HostedEyes, Tensors
from mmserve.models.ports import Model
from mmserve.models.refusal import refuse

__all__ = ["build"]

_DEFAULTS: dict[str, Any] = {
    "image_token_index": 262144,
    "mm_tokens_per_image": 256,
    "text_config": {},
    "tie_word_embeddings": True,
    "vision_config": {},
}
_TOWER = {"model_type": "siglip_vision_model", "image_size": 224, "patch_size": 16}


def build(checkpoint: Checkpoint) -> Model:
    """The decoder and its eyes. Raises UnsupportedModel, WeightMismatch."""
    config = {**_DEFAULTS, **checkpoint.config}
    _check_tower({**_TOWER, **config["vision_config"]}, int(config["mm_tokens_per_image"]))
    text = {"model_type": "gemma3_text", **config["text_config"]}
    text["tie_word_embeddings"] = bool(config["tie_word_embeddings"])
    weights = checkpoint.weights()
    shapes = DecoderConfig.parse(text, context_length=checkpoint.context_length)
    decoder = Decoder(shapes, weights)
    weights.finish(ignored=["vision.", "projector."])
    token = config.get("image_token_id", config["image_token_index"])
    return Model("gemma3", decoder, HostedEyes(checkpoint, _features), int(token))


def _check_tower(tower: Mapping[str, Any], num_tokens: int) -> None:
    """Raise UnsupportedModel if patches cannot be pooled into so many tokens."""
    if tower["model_type"] != "siglip_vision_model":
        refuse("gemma3", f"vision tower {tower['model_type']!r}")
    num_patches = int(tower["image_size"]) // int(tower["patch_size"])
    side = math.isqrt(num_tokens)
    if side * side != num_tokens or num_patches % side:
        refuse("gemma3", f"mm_tokens_per_image {num_tokens} of {num_patches} patches a side")


def _features(model: Any, items: Sequence[Tensors]) -> list[Tensor]:  # noqa: ANN401
    """Features [K, E] of items {"pixel_values": [3, S, S]}."""
    pixels = torch.stack([item["pixel_values"] for item in items])
    return list(model.get_image_features(pixels).pooler_output.unbind(0))
