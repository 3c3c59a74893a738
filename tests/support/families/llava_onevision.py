"""LLaVA-OneVision: tiles and pooled clips on a SigLIP tower, Qwen2."""

import functools
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from tokenizers import AddedToken
from transformers.models.llava_onevision.image_processing_pil_llava_onevision import (
    LlavaOnevisionImageProcessorPil,
)

from support.anyres import with_frames
from support.checkpoints import (
    CHAT_TEMPLATE,
    IMAGE_TOKEN_ID,
    _root,
    _save,
    _text_config,
    tiny_tokenizer,
)
from support.families.llava_next import SHAPES, tower_config
from support.proof import (
    CLIP_CASES,
    PICTURE_CASES,
    TEXT_CASES,
    Case,
    Family,
    picture,
    plain_inputs,
)

SIDE = 32
PATCH_SIZE = 6
CANVASES = [[SIDE * height, SIDE * width] for height in range(1, 7) for width in range(1, 7)]
MANY_TILES = Case("many tiles", (("user", (picture(13, 192, 181), "What is this?")),))
"""36 tiles, whose features are interpolated."""


def tokenizer_with_video() -> Any:
    """The small tokenizer with `<video>` behind the others."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken("<video>", special=True, normalized=False)])
    return tokenizer


@functools.cache
def tiny_llava_onevision(*, max_tiles: int = 4, seed: int = 8) -> Path:
    """LLaVA-OneVision with tiles of 5 x 5 patches, two pixels of a tile cut off."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with_video()
    config = transformers.LlavaOnevisionConfig(
        vision_config=tower_config("siglip", SIDE, PATCH_SIZE),
        text_config=_text_config("qwen2", 2048, vocab_size=len(tokenizer)),
        image_token_index=IMAGE_TOKEN_ID,
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=CANVASES,
        vision_aspect_ratio=f"anyres_max_{max_tiles}",
    )
    model = transformers.LlavaOnevisionForConditionalGeneration(config)
    directory = Path(mkdtemp(prefix="tiny-llava-onevision-", dir=_root()))
    _save(model, directory)
    size: dict[str, Any] = {"size": {"height": SIDE, "width": SIDE}}
    values = {"image_mean": [0.5, 0.4, 0.5], "image_std": [0.5, 0.5, 0.4]}
    processor = transformers.LlavaOnevisionProcessor(
        image_processor=LlavaOnevisionImageProcessorPil(
            **size, **values, image_grid_pinpoints=CANVASES
        ),
        tokenizer=tokenizer,
        video_processor=transformers.LlavaOnevisionVideoProcessor(**size, **values),
        num_image_tokens=(SIDE // PATCH_SIZE) ** 2,
        vision_feature_select_strategy="full",
        chat_template=CHAT_TEMPLATE,
        vision_aspect_ratio=f"anyres_max_{max_tiles}",
    )
    processor.save_pretrained(directory)
    return directory


def reference(directory: Path) -> Any:
    """Transformers' processor: pictures by Pillow, clips by torchvision, which has no other."""
    processor = transformers.AutoProcessor.from_pretrained(directory)
    processor.image_processor = LlavaOnevisionImageProcessorPil.from_pretrained(directory)
    return processor


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case whose frames have their last size already: torchvision rounds some values off."""
    return plain_inputs(processor, with_frames(case, SIDE, is_cropped=False))


FAMILY = Family(
    "llava_onevision",
    tiny_llava_onevision,
    (*TEXT_CASES, *PICTURE_CASES, *SHAPES, MANY_TILES, *CLIP_CASES),
    inputs,
    reference,
)
"""LLaVA-OneVision through the engine against transformers."""
