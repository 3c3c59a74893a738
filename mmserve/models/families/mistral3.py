"""Mistral 3, and Pixtral as transformers writes it (`llava`): the lean decoder, hosted eyes.

The tower takes pictures of any size as one sequence of patches with a mask between pictures,
so that its attention costs the square of all of them together: a few small pictures go
together, a large one alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig
from mmserve.models.decoder import Decoder
from mmserve.models.hosted.eyes import HostedEyes, Tensors
from mmserve.models.ports import Model
from mmserve.models.refusal import refuse

__all__ = ["build"]

MAX_TOGETHER_PATCHES = 2048
"""Pictures of more patches in all are not encoded together."""
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llava": {
        "image_token_index": 32000,
        "text_config": {"model_type": "llama"},
        "tie_word_embeddings": False,
        "vision_feature_layer": -2,
        "vision_feature_select_strategy": "default",
    },
    "mistral3": {
        "image_token_index": 10,
        "text_config": {"model_type": "mistral"},
        "tie_word_embeddings": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    },
}


def build(checkpoint: Checkpoint) -> Model:
    """The decoder and its eyes. Raises UnsupportedModel, WeightMismatch."""
    family = checkpoint.family
    config = {**_DEFAULTS[family], **checkpoint.config}
    _check(family, config)
    text = {**_DEFAULTS[family]["text_config"], **config["text_config"]}
    is_tied = config["tie_word_embeddings"] or text.get("tie_word_embeddings")
    text["tie_word_embeddings"] = bool(is_tied)
    weights = checkpoint.weights()
    shapes = DecoderConfig.parse(text, context_length=checkpoint.context_length)
    decoder = Decoder(shapes, weights)
    weights.finish(ignored=["vision.", "projector."])
    token = config.get("image_token_id", config["image_token_index"])
    return Model(family, decoder, HostedEyes(checkpoint, _features), int(token))


def _check(family: str, config: dict[str, Any]) -> None:
    """Raise UnsupportedModel for what the tower's patches do not allow."""
    tower = str((config.get("vision_config") or {}).get("model_type", "pixtral"))
    if tower != "pixtral":
        refuse(family, f"vision tower {tower!r} instead of 'pixtral'")
    if config["vision_feature_select_strategy"] != "full":
        strategy = config["vision_feature_select_strategy"]
        refuse(family, f"vision_feature_select_strategy {strategy!r} with a Pixtral tower")
    layers = config["vision_feature_layer"]
    if family == "mistral3" and not isinstance(layers, int):
        refuse(family, f"features of several layers (vision_feature_layer {layers})")


def _features(model: Any, items: Sequence[Tensors]) -> list[Tensor]:  # noqa: ANN401
    """Features [K, E] of items {"pixel_values": [3, height, width]}, of any sizes."""
    area = model.model.vision_tower.patch_size**2
    features: list[Tensor] = []
    group: list[Tensor] = []
    num_patches = 0
    for item in items:
        pixels = item["pixel_values"]
        num_own = pixels[0].numel() // area
        if group and num_patches + num_own > MAX_TOGETHER_PATCHES:
            features += _together(model, group)
            group, num_patches = [], 0
        group.append(pixels)
        num_patches += num_own
    return features + _together(model, group)


def _together(model: Any, pictures: Sequence[Tensor]) -> list[Tensor]:  # noqa: ANN401
    """Features of pictures in one run, filled up to the largest; the filling is left out."""
    sizes = [(int(pixels.shape[1]), int(pixels.shape[2])) for pixels in pictures]
    unit = model.model.vision_tower.patch_size * getattr(model.config, "spatial_merge_size", 1)
    if sizes == [(unit, unit)]:
        # transformers drops the axis of tokens if there is but one, so it gets a second one
        return _together(model, [*pictures, *pictures])[:1]
    tall, wide = max(size[0] for size in sizes), max(size[1] for size in sizes)
    padded = [F.pad(p, (0, wide - p.shape[2], 0, tall - p.shape[1])) for p in pictures]
    found = model.get_image_features(pixel_values=torch.stack(padded), image_sizes=sizes)
    return list(found.pooler_output)
