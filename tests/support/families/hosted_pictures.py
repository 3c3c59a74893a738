"""Families that see pictures, without a file of their own: through transformers' modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from transformers.models.cohere2_vision.image_processing_cohere2_vision import (
    Cohere2VisionImageProcessor,
)
from transformers.models.deepseek_vl.image_processing_pil_deepseek_vl import (
    DeepseekVLImageProcessorPil,
)
from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import GotOcr2ImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from support.checkpoints import CHAT_TEMPLATE, _root, _save, _text_config
from support.families.idefics3 import tokenizer_with
from support.proof import PICTURE_CASES, TEXT_CASES, Case, Family, plain_inputs

__all__ = ["FAMILIES", "MAKERS", "REFUSED"]

SIDE = 32
_SIZE = {"height": SIDE, "width": SIDE}
_TOWER = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "image_size": SIDE,
    "patch_size": 8,
    "initializer_range": 0.15,
}
_AYA_WORDS = (
    "<|START_OF_IMG|>",
    "<|END_OF_IMG|>",
    "<|IMG_PATCH|>",
    "<|IMG_LINE_BREAK|>",
    "TILE",
    "TILE_GLOBAL",
)
_GOT_TEMPLATE = CHAT_TEMPLATE.replace(
    "<{{ part.type }}>", "{% if part.type == 'image' %}<img><imgpad></img>{% endif %}"
)


def _text(tokenizer: Any, family: str = "llama", **changes: Any) -> Any:
    return _text_config(family, 2048, vocab_size=len(tokenizer), **changes)


def _cohere(tokenizer: Any) -> Any:
    return transformers.Cohere2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        sliding_window=16,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        initializer_range=0.12,
        logit_scale=1.0,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


def _saved(config: Any, processor: Any, seed: int) -> Path:
    torch.manual_seed(seed)
    model = transformers.AutoModelForImageTextToText.from_config(config)
    directory = Path(mkdtemp(prefix=f"tiny-{config.model_type}-", dir=_root()))
    _save(model, directory)
    processor.save_pretrained(directory)
    return directory


@functools.cache
def tiny_aya_vision(seed: int = 0) -> Path:
    """Tiles, each behind its number as text; a decoder of Cohere 2."""
    tokenizer = tokenizer_with(_AYA_WORDS, CHAT_TEMPLATE, image_token="<image>")
    config = transformers.AyaVisionConfig(
        vision_config={"model_type": "siglip_vision_model", **_TOWER, "vision_use_head": False},
        text_config=_cohere(tokenizer),
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        initializer_range=0.15,
    )
    pictures = GotOcr2ImageProcessorPil(size=_SIZE, max_patches=4, crop_to_patches=True)
    processor = transformers.AyaVisionProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=8,
        img_size=SIDE,
        downsample_factor=2,
        chat_template=CHAT_TEMPLATE,
    )
    return _saved(config, processor, seed)


@functools.cache
def tiny_cohere2_vision(seed: int = 0) -> Path:
    """Tiles, each behind a break; its processor needs torchvision."""
    template = CHAT_TEMPLATE.replace("<{{ part.type }}>", "<|IMG_PATCH|>")
    tokenizer = tokenizer_with(
        _AYA_WORDS,
        template,
        image_token="<|IMG_PATCH|>",
        boi_token="<|START_OF_IMG|>",
        eoi_token="<|END_OF_IMG|>",
        img_line_break_token="<|IMG_LINE_BREAK|>",
    )
    config = transformers.Cohere2VisionConfig(
        vision_config={"model_type": "siglip_vision_model", **_TOWER, "vision_use_head": False},
        text_config=_cohere(tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        alignment_intermediate_size=64,
        initializer_range=0.15,
    )
    pictures = Cohere2VisionImageProcessor(
        size=_SIZE, patch_size=2, max_patches=4, crop_to_patches=True
    )
    processor = transformers.Cohere2VisionProcessor(
        image_processor=pictures, tokenizer=tokenizer, chat_template=template
    )
    return _saved(config, processor, seed)


@functools.cache
def tiny_got_ocr2(seed: int = 0) -> Path:
    """A windowed tower whose convolutions leave 256 tokens of any picture."""
    tokenizer = tokenizer_with(("<img>", "</img>", "<imgpad>"), _GOT_TEMPLATE)
    side = 256
    config = transformers.GotOcr2Config(
        vision_config={
            "hidden_size": 24,
            "output_channels": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": side,
            "patch_size": 4,
            "mlp_dim": 32,
            "global_attn_indexes": [],
            "initializer_range": 0.15,
        },
        text_config=_text(tokenizer, "qwen2"),
        image_token_index=tokenizer.convert_tokens_to_ids("<imgpad>"),
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    pictures = GotOcr2ImageProcessorPil(size={"height": side, "width": side})
    processor = transformers.GotOcr2Processor(
        image_processor=pictures, tokenizer=tokenizer, chat_template=_GOT_TEMPLATE
    )
    return _saved(config, processor, seed)


@functools.cache
def tiny_deepseek_vl(seed: int = 0) -> Path:
    """A SigLIP tower behind two plain layers, on Llama."""
    tokenizer = tokenizer_with((), CHAT_TEMPLATE, image_token="<image>")
    config = transformers.DeepseekVLConfig(
        vision_config={"model_type": "siglip_vision_model", **_TOWER, "vision_use_head": False},
        text_config=_text(tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    processor = transformers.DeepseekVLProcessor(
        image_processor=DeepseekVLImageProcessorPil(size=_SIZE, min_size=4),
        tokenizer=tokenizer,
        num_image_tokens=16,
        chat_template=CHAT_TEMPLATE,
    )
    return _saved(config, processor, seed)


@functools.cache
def tiny_paligemma(seed: int = 0) -> Path:
    """A prompt whose tokens all see each other, so not to be served."""
    tokenizer = tokenizer_with((), CHAT_TEMPLATE, image_token="<image>")
    config = transformers.PaliGemmaConfig(
        vision_config={"model_type": "siglip_vision_model", **_TOWER, "projection_dim": 64},
        text_config=_text(tokenizer, "gemma"),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=64,
    )
    processor = transformers.PaliGemmaProcessor(
        image_processor=SiglipImageProcessorPil(size=_SIZE, image_seq_length=16),
        tokenizer=tokenizer,
        chat_template=CHAT_TEMPLATE,
    )
    return _saved(config, processor, seed)


@functools.cache
def tiny_mllama(seed: int = 0) -> Path:
    """Pictures read by layers of their own, so not to be served."""
    tokenizer = tokenizer_with((), CHAT_TEMPLATE, image_token="<image>")
    config = transformers.MllamaConfig(
        vision_config={
            **_TOWER,
            "hidden_size": 48,
            "attention_heads": 3,
            "num_global_layers": 1,
            "vision_output_dim": 96,
            "intermediate_layers_indices": [1],
            "supported_aspect_ratios": [[1, 1]],
            "max_num_tiles": 1,
        },
        text_config={
            **_text(tokenizer).to_dict(),
            "model_type": "mllama_text_model",
            "cross_attention_layers": [1],
        },
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return _saved(config, tokenizer, seed)


@functools.cache
def tiny_glm4v(seed: int = 0) -> Path:
    """Positions in time, rows and columns, so not to be served without a file of its own."""
    tokenizer = tokenizer_with((), CHAT_TEMPLATE, image_token="<image>")
    text = _text(tokenizer).to_dict()
    config = transformers.Glm4vConfig(
        vision_config={
            **_TOWER,
            "depth": 2,
            "num_heads": 3,
            "out_hidden_size": 64,
        },
        text_config={
            **text,
            "model_type": "glm4v_text",
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 10000.0,
                "mrope_section": [2, 3, 3],
            },
        },
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return _saved(config, tokenizer, seed)


REFUSED: Mapping[str, Callable[[], Path]] = {
    "glm4v": tiny_glm4v,
    "mllama": tiny_mllama,
    "paligemma": tiny_paligemma,
}
"""Families that cannot be served."""


def _got_inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """GOT's processor reads nothing without pictures; its tokenizer does."""
    return plain_inputs(processor if case.pictures else processor.tokenizer, case)


MAKERS: Mapping[str, Callable[[int], Path]] = {
    "aya_vision": tiny_aya_vision,
    "cohere2_vision": tiny_cohere2_vision,
    "deepseek_vl": tiny_deepseek_vl,
    "got_ocr2": tiny_got_ocr2,
}
_SEEDS = {"aya_vision": 2, "deepseek_vl": 4, "got_ocr2": 2}
FAMILIES = tuple(
    Family(
        name,
        functools.partial(make, _SEEDS.get(name, 0)),
        (*TEXT_CASES, *PICTURE_CASES),
        _got_inputs if name == "got_ocr2" else None,
    )
    for name, make in MAKERS.items()
)
