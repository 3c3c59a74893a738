"""LLaVA-OneVision: LLaVA-NeXT's eyes on a SigLIP tower, with clips of pooled frames."""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.families.llava import LlavaEyes
from mmserve.models.families.llava_next import as_planes, as_rows, build_with
from mmserve.models.ports import Model

__all__ = ["build"]

_DEFAULTS: dict[str, Any] = {
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    },
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_token_index": 151646,
}


def build(checkpoint: Checkpoint) -> Model:
    """LLaVA-OneVision with the lean decoder. Raises as `build_model`."""
    return build_with(checkpoint, _DEFAULTS, _frames)


def _frames(eyes: LlavaEyes, pixels: Tensor) -> Tensor:
    """Embeddings of frames, bilinearly brought to half as many rows and columns."""
    planes = as_planes(eyes.project(eyes.see(pixels)))
    halves = math.ceil(planes.shape[-1] / 2)
    return as_rows(F.interpolate(planes, (halves, halves), mode="bilinear"))
