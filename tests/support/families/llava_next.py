"""LLaVA-NeXT: tiles of any resolution on a CLIP tower, Mistral; frames are pictures."""

import functools
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from support.checkpoints import (
    CHAT_TEMPLATE,
    IMAGE_TOKEN_ID,
    _root,
    _save,
    _text_config,
    tiny_tokenizer,
)
from support.proof import PICTURE_CASES, TEXT_CASES, Case, Family, picture

SIDE = 28
PATCH_SIZE = 7
CANVASES = [[28, 56], [56, 28], [56, 56], [84, 28], [28, 84]]
SHAPES = (
    Case("wide", (("user", (picture(7, 211, 9), "A line?")),)),
    Case(
        "tall",
        (
            (
                "user",
                ("Up: ", picture(8, 13, 170), picture(9, 3, 40)),
            ),
        ),
    ),
    Case("small", (("user", (picture(11, 5, 4), picture(12, 1, 1), "Seen?")),)),
)
"""Pictures whose rows of features are few, or made of few pixels."""


def tower_config(kind: str, side: int, patch_size: int) -> Any:
    """A small tower whose outputs differ from place to place."""
    classes = {
        "clip": transformers.CLIPVisionConfig,
        "siglip": transformers.SiglipVisionConfig,
    }
    return classes[kind](
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=3,
        image_size=side,
        patch_size=patch_size,
    )


@functools.cache
def tiny_llava_next(
    text: str = "mistral",
    *,
    tower: str = "clip",
    layer: int | tuple[int, ...] = -2,
    seed: int = 4,
) -> Path:
    """LLaVA-NeXT with tiles of 4 x 4 patches."""
    torch.manual_seed(seed)
    has_class = tower == "clip"
    strategy = "default" if has_class else "full"
    config = transformers.LlavaNextConfig(
        vision_config=tower_config(tower, SIDE, PATCH_SIZE),
        text_config=_text_config(text, 2048),
        image_token_index=IMAGE_TOKEN_ID,
        image_grid_pinpoints=CANVASES,
        vision_feature_layer=layer if isinstance(layer, int) else list(layer),
        vision_feature_select_strategy=strategy,
    )
    model = transformers.LlavaNextForConditionalGeneration(config)
    directory = Path(mkdtemp(prefix="tiny-llava-next-", dir=_root()))
    _save(model, directory)
    processor = transformers.LlavaNextProcessor(
        image_processor=LlavaNextImageProcessorPil(
            size={"shortest_edge": SIDE},
            crop_size={"height": SIDE, "width": SIDE},
            image_grid_pinpoints=CANVASES,
        ),
        tokenizer=tiny_tokenizer(),
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(has_class),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(directory)
    return directory


FAMILY = Family("llava_next", tiny_llava_next, (*TEXT_CASES, *PICTURE_CASES, *SHAPES))
"""LLaVA-NeXT through the engine against transformers."""
