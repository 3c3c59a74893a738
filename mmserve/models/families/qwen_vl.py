"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: the lean decoder, and transformers' towers.

    patches of several items, one behind the other -> tower -> [K, E] each, (deep sets behind)

Attention in the towers stays within a picture, and within a group of frames, so items are
encoded together by putting their patches in one row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import DecoderConfig, refuse
from mmserve.models.decoder import Decoder
from mmserve.models.hosted.eyes import HostedEyes, Tensors
from mmserve.models.ports import Model

__all__ = ["build", "text_config"]

_TEXT: Mapping[str, Mapping[str, Any]] = {
    "qwen2_vl": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "qwen2_5_vl": {"rope_theta": 1e6, "rms_norm_eps": 1e-5},
    "qwen3_vl": {"rope_theta": 5e5},
}
_SECTIONS = {"qwen2_vl": (16, 24, 24), "qwen2_5_vl": (16, 24, 24), "qwen3_vl": (24, 20, 20)}
_DEEP_LAYERS = (8, 16, 24)
"""Fields that transformers assumes where a checkpoint is silent."""


def build(checkpoint: Checkpoint) -> Model:
    """The decoder and the eyes of a checkpoint. Raises as `build_model`."""
    config, family = checkpoint.config, checkpoint.family
    text = DecoderConfig.parse(text_config(family, config))
    vision = config.get("vision_config") or {}
    if family == "qwen3_vl":
        num_deep = len(vision.get("deepstack_visual_indexes", _DEEP_LAYERS))
        text = replace(text, num_deep=num_deep)
    if any(window is not None for window in text.windows):
        refuse(family, "sliding windows (use_sliding_window)")
    weights = checkpoint.weights()
    decoder = Decoder(text, weights)
    weights.finish(ignored=["vision."])
    eyes = HostedEyes(checkpoint, _features)
    return Model(family, decoder, eyes, int(config.get("image_token_id", 151655)))


def text_config(family: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the decoder, which older checkpoints keep beside `vision_config`. Pure."""
    nested = config.get("text_config")
    fields = {**_TEXT[family], **(config if nested is None else nested)}
    rope = {**(fields.get("rope_scaling") or {}), **(fields.get("rope_parameters") or {})}
    sections = rope.get("mrope_section") or _SECTIONS[family]
    rope |= {"mrope_section": sections, "mrope_interleaved": family == "qwen3_vl"}
    is_tied = config.get("tie_word_embeddings") or fields.get("tie_word_embeddings")
    return {
        **fields,
        "model_type": f"{family}_text",
        "rope_scaling": None,
        "rope_parameters": rope,
        "tie_word_embeddings": bool(is_tied),
    }


def _features(model: Any, items: Sequence[Tensors]) -> list[Tensor]:  # noqa: ANN401
    """[K, E * (1 + deep sets)] of each item, see `PictureEncoder.encode`."""
    visual = model.model.visual
    grids = torch.stack([item["grid"] for item in items])
    pixels = torch.cat([item["pixel_values"] for item in items])
    found = visual(pixels, grid_thw=grids)
    sets = [found.pooler_output, *(getattr(found, "deepstack_features", None) or ())]
    num_tokens = (grids.prod(-1) // visual.spatial_merge_size**2).tolist()
    return list(torch.cat(sets, dim=-1).split(num_tokens))
