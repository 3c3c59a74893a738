"""Processors by family: how each sizes, writes and prepares media.

A family is one file here and one in `models/families`; see docs/guides/add-a-family.md.
Called by `vision.plane` through the port in `vision.processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmserve.vision.families import (
    gemma3,
    hosted,
    idefics3,
    internvl,
    llava_config,
    llava_next,
    llava_onevision,
    pixtral,
    qwen_vl,
)
from mmserve.vision.processor import Processor

__all__ = ["PROCESSORS", "load_processor"]


def _load_llava(directory: Path, config: Mapping[str, Any]) -> Processor:
    """LLaVA's processor, or Pixtral's, which transformers writes as a LLaVA with its tower."""
    tower = (config.get("vision_config") or {}).get("model_type")
    if tower == "pixtral":
        return pixtral.load(directory, config)
    return llava_config.load(directory, config)


PROCESSORS: Mapping[str, Callable[[Path, Mapping[str, Any]], Processor]] = {
    "gemma3": gemma3.load,
    "idefics3": idefics3.load,
    "internvl": internvl.load,
    "llava": _load_llava,
    "llava_next": llava_next.load,
    "llava_next_video": llava_next.load_video,
    "llava_onevision": llava_onevision.load,
    "mistral3": pixtral.load,
    "smolvlm": idefics3.load,
    "qwen2_5_vl": qwen_vl.load,
    "qwen2_vl": qwen_vl.load,
    "qwen3_vl": qwen_vl.load,
    "vipllava": llava_config.load,
}
"""Makers of processors by model type; a new family is a line here."""


def load_processor(directory: Path, config: Mapping[str, Any]) -> Processor:
    """The processor of a checkpoint; of a type not named here, its own of transformers.

    Args:
        directory: holds processor_config.json or preprocessor_config.json.
        config: the model's config.json.

    Raises UnsupportedModel, ModelRefused if it does not fit the model.
    """
    word = str(config.get("model_type", "llava"))
    return PROCESSORS.get(word, hosted.load)(directory, config)
