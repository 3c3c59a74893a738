"""Families by the word that config.json uses, and how each is built.

A family is one file here and one in `vision/families`; see docs/guides/add-a-family.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.families import (
    gemma3,
    idefics3,
    internvl,
    llava,
    llava_next,
    llava_onevision,
    mistral3,
    qwen_vl,
    text,
    vipllava,
)
from mmserve.models.ports import Model

__all__ = ["FAMILIES"]


def _build_llava(checkpoint: Checkpoint) -> Model:
    """LLaVA, or Pixtral, which transformers writes as a LLaVA with its tower."""
    tower = (checkpoint.config.get("vision_config") or {}).get("model_type")
    return mistral3.build(checkpoint) if tower == "pixtral" else llava.build(checkpoint)


FAMILIES: Mapping[str, Callable[[Checkpoint], Model]] = {
    "gemma": text.build,
    "gemma2": text.build,
    "gemma3": gemma3.build,
    "gemma3_text": text.build,
    "idefics3": idefics3.build,
    "internvl": internvl.build,
    "llama": text.build,
    "llava": _build_llava,
    "llava_next": llava_next.build,
    "llava_next_video": llava_next.build_video,
    "llava_onevision": llava_onevision.build,
    "mistral": text.build,
    "mistral3": mistral3.build,
    "phi3": text.build,
    "qwen2": text.build,
    "qwen3": text.build,
    "smollm3": text.build,
    "smolvlm": idefics3.build,
    "qwen2_5_vl": qwen_vl.build,
    "qwen2_vl": qwen_vl.build,
    "qwen3_vl": qwen_vl.build,
    "vipllava": vipllava.build,
}
"""Builders by model type; a new family is a line here."""
