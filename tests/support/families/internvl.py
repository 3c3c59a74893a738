"""InternVL: tiles of 32 pixels, four tokens each, on Qwen2, Qwen3 or Llama."""

import functools
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil

from support.checkpoints import CHAT_TEMPLATE, _root, _save, _text_config
from support.families.idefics3 import EXTREMES, SIDE, tokenizer_with
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Case, Family

WORDS = ("<img>", "</img>", "<IMG_CONTEXT>", "<video>")
TEMPLATE = CHAT_TEMPLATE.replace(
    "<{{ part.type }}>",
    "{% if part.type == 'image' %}<IMG_CONTEXT>\n{% else %}<video>\n{% endif %}",
)


@functools.cache
def tiny_internvl(
    family: str = "qwen2", *, is_tied: bool = False, max_tiles: int = 6, seed: int = 0
) -> Path:
    """InternVL on a language model of `family`: at most so many tiles of 32 pixels."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with(
        WORDS,
        TEMPLATE,
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<IMG_CONTEXT>",
        video_token="<video>",
    )
    vision = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": SIDE,
        "patch_size": 8,
        "attention_bias": True,
        "use_qk_norm": family == "llama",
        "norm_type": "rms_norm" if family == "llama" else "layer_norm",
        "initializer_range": 0.15,
    }
    config = transformers.InternVLConfig(
        vision_config=vision,
        text_config=_text_config(family, 2048, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
        tie_word_embeddings=is_tied,
    )
    directory = Path(mkdtemp(prefix="tiny-internvl-", dir=_root()))
    _save(transformers.InternVLForConditionalGeneration(config), directory)
    size = {"height": SIDE, "width": SIDE}
    transformers.InternVLProcessor(
        image_processor=GotOcr2ImageProcessorPil(size=size, max_patches=max_tiles),
        tokenizer=tokenizer,
        video_processor=transformers.InternVLVideoProcessor(size=size),
        image_seq_length=4,
        chat_template=TEMPLATE,
    ).save_pretrained(directory)
    return directory


def processor_of(directory: Path) -> Any:
    """Transformers' processor, with pictures on Pillow; clips it has on torchvision alone."""
    processor = transformers.AutoProcessor.from_pretrained(directory)
    processor.image_processor = GotOcr2ImageProcessorPil.from_pretrained(directory)
    return processor


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case by transformers' processor, all frames of clips taken."""
    text = processor.apply_chat_template(
        case.messages, add_generation_prompt=True, tokenize=False
    )
    media: dict[str, Any] = {}
    if case.pictures:
        media["images"] = [Image.fromarray(p) for p in case.pictures]
    if case.clips:
        media["videos"] = [np.stack(clip.frames) for clip in case.clips]
    return dict(processor(text=[text], return_tensors="pt", add_special_tokens=False, **media))


FAMILY = Family(
    "internvl",
    tiny_internvl,
    (*TEXT_CASES, *PICTURE_CASES, *CLIP_CASES, *EXTREMES),
    inputs,
    processor_of,
)
"""InternVL through the engine against transformers."""
