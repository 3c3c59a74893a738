"""ViP-LLaVA: features of several layers, normed; frames of clips are pictures."""

import functools
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers

from support.checkpoints import (
    IMAGE_TOKEN_ID,
    _root,
    _save,
    _save_processor,
    _text_config,
)
from support.families.llava_next import tower_config
from support.proof import PICTURE_CASES, TEXT_CASES, Family

SIDE = 28
PATCH_SIZE = 7


@functools.cache
def tiny_vipllava(*, seed: int = 0) -> Path:
    """ViP-LLaVA with 4 x 4 patches."""
    torch.manual_seed(seed)
    config = transformers.VipLlavaConfig(
        vision_config=tower_config("clip", SIDE, PATCH_SIZE),
        text_config=_text_config("llama", 1024),
        image_token_index=IMAGE_TOKEN_ID,
        vision_feature_layer=[-2, 0, 3],
        projector_layernorm_eps=1e-3,
        image_seq_length=16,
    )
    model = transformers.VipLlavaForConditionalGeneration(config)
    directory = Path(mkdtemp(prefix="tiny-vipllava-", dir=_root()))
    _save(model, directory)
    _save_processor(directory, "clip", SIDE, PATCH_SIZE, "default")
    return directory


FAMILY = Family("vipllava", tiny_vipllava, (*TEXT_CASES, *PICTURE_CASES))
"""ViP-LLaVA through the engine against transformers."""
