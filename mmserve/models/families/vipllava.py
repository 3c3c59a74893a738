"""ViP-LLaVA: LLaVA-1.5 whose projector norms the joined features of several layers first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name every torch reader knows
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import LlavaConfig
from mmserve.models.decoder import Decoder
from mmserve.models.families.llava import LlavaEyes, unread
from mmserve.models.ports import Inputs, Model
from mmserve.models.weights import Weights

__all__ = ["VipLlavaEyes", "build"]

_LAYERS: dict[str, Any] = {"vision_feature_layer": [-2, -5, -8, -11, 6]}
_NORM = "projector.projector_layernorm"


class VipLlavaEyes:
    """A loaded tower with its projector. Immutable.

    Args:
        config: shapes and which features are read.
        eps: of the projector's norm.
        weights: the checkpoint.
    """

    def __init__(self, config: LlavaConfig, eps: float, weights: Weights) -> None:
        self._eyes = LlavaEyes(config, weights)
        self._eps = eps
        self._shape = (config.tower.hidden_size * len(config.feature_depths),)
        self._weight = weights.take(f"{_NORM}.weight", self._shape)
        self._bias = weights.take(f"{_NORM}.bias", self._shape)

    def encode(self, items: Sequence[Inputs]) -> list[Tensor]:
        """See `PictureEncoder.encode`; items are {"pixel_values": float32 [C, S, S]}."""
        pixels = torch.stack([self._eyes.pixels(item["pixel_values"]) for item in items])
        seen = self._eyes.see(pixels)
        normed = F.layer_norm(seen, self._shape, self._weight, self._bias, self._eps)
        return list(self._eyes.project(normed).unbind(0))


def build(checkpoint: Checkpoint) -> Model:
    """ViP-LLaVA with the lean decoder and a tower of our own. Raises as `build_model`."""
    own = {"vision_feature_select_strategy": "default", "multimodal_projector_bias": True}
    given = dict(checkpoint.config)
    if "vision_feature_layers" in given:  # as its first release spelled it
        given["vision_feature_layer"] = given["vision_feature_layers"]
    config = LlavaConfig.parse({**_LAYERS, **given, **own})
    eps = float(checkpoint.config.get("projector_layernorm_eps", 1e-5))
    weights = checkpoint.weights()
    decoder, eyes = Decoder(config.text, weights), VipLlavaEyes(config, eps, weights)
    weights.finish(ignored=unread(config))
    return Model(checkpoint.family, decoder, eyes, config.image_token_id)
