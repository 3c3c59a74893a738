"""LLaVA-NeXT-Video: LLaVA-NeXT's pictures, and clips of pooled frames."""

import functools
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from support.anyres import with_frames
from support.checkpoints import (
    CHAT_TEMPLATE,
    IMAGE_TOKEN_ID,
    _root,
    _save,
    _text_config,
)
from support.families.llava_next import CANVASES, PATCH_SIZE, SHAPES, SIDE, tower_config
from support.families.llava_onevision import tokenizer_with_video
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Case, Family, plain_inputs


@functools.cache
def tiny_llava_next_video(*, pool: str = "average", seed: int = 9) -> Path:
    """LLaVA-NeXT-Video with tiles of 4 x 4 patches."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with_video()
    config = transformers.LlavaNextVideoConfig(
        vision_config=tower_config("clip", SIDE, PATCH_SIZE),
        text_config=_text_config("llama", 2048, vocab_size=len(tokenizer)),
        image_token_index=IMAGE_TOKEN_ID,
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=CANVASES,
        spatial_pool_mode=pool,
    )
    model = transformers.LlavaNextVideoForConditionalGeneration(config)
    directory = Path(mkdtemp(prefix="tiny-llava-next-video-", dir=_root()))
    _save(model, directory)
    size: dict[str, Any] = {
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
    }
    processor = transformers.LlavaNextVideoProcessor(
        image_processor=LlavaNextImageProcessorPil(**size, image_grid_pinpoints=CANVASES),
        video_processor=transformers.LlavaNextVideoVideoProcessor(**size),
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(directory)
    return directory


def reference(directory: Path) -> Any:
    """Transformers' processor: pictures by Pillow, clips by torchvision, which has no other."""
    processor = transformers.AutoProcessor.from_pretrained(directory)
    processor.image_processor = LlavaNextImageProcessorPil.from_pretrained(directory)
    return processor


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case whose frames have their last size already: torchvision rounds some values off."""
    return plain_inputs(processor, with_frames(case, SIDE, is_cropped=True))


FAMILY = Family(
    "llava_next_video",
    tiny_llava_next_video,
    (*TEXT_CASES, *PICTURE_CASES, *SHAPES, *CLIP_CASES),
    inputs,
    reference,
)
"""LLaVA-NeXT-Video through the engine against transformers."""
