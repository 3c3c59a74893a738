"""Tiny seeded Qwen2-VL, Qwen2.5-VL and Qwen3-VL, written with transformers."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from support.checkpoints import _root, _save, tiny_tokenizer

__all__ = ["CLASSES", "load_processor", "tiny_qwen_vl"]

TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}"
    "{% else %}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CLASSES = {
    "qwen2_vl": ("Qwen2VL", "Qwen2VL"),
    "qwen2_5_vl": ("Qwen2_5_VL", "Qwen2VL"),
    "qwen3_vl": ("Qwen3VL", "Qwen3VL"),
}
"""First words of classes: of the model and its processor, and of the processor of clips."""
_SEEDS = {"qwen2_vl": 0, "qwen2_5_vl": 0, "qwen3_vl": 6}
_PICTURE_SIZE = {"shortest_edge": 4 * 28 * 28, "longest_edge": 64 * 28 * 28}
_CLIP_SIZE = {"shortest_edge": 4 * 32 * 32, "longest_edge": 48 * 32 * 32}


def _tokenizer() -> transformers.PreTrainedTokenizerFast:
    """The tiny tokenizer with Qwen's words behind its own, and a template that writes them."""
    backend = tiny_tokenizer().backend_tokenizer
    backend.add_special_tokens(list(_WORDS))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": _WORDS[2], "video_token": _WORDS[3]},
        chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def _vision(family: str) -> dict[str, Any]:
    """Towers of two or three layers, 32 wide; a merged token is 64 wide."""
    if family == "qwen2_vl":
        return {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2}
    fields = {"hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64}
    if family == "qwen2_5_vl":
        windows = {"window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 5}
        return {**fields, **windows, "depth": 3}
    return {
        **fields,
        "depth": 3,
        "deepstack_visual_indexes": [0, 1],
        "num_position_embeddings": 36,
    }


@functools.cache
def tiny_qwen_vl(family: str, *, context: int = 2048) -> Path:
    """A model of `family` (see `CLASSES`) with tokenizer and processors."""
    torch.manual_seed(_SEEDS[family])
    stem, clip_stem = CLASSES[family]
    tokenizer = _tokenizer()
    ids = tokenizer.convert_tokens_to_ids(list(_WORDS))
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    sections = [3, 3, 2] if family == "qwen3_vl" else [2, 3, 3]
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": context,
        "initializer_range": 0.25,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": sections,
        },
    }
    if family == "qwen3_vl":
        text |= {"head_dim": 16}
        text["rope_parameters"] |= {"mrope_interleaved": True}
    config = getattr(transformers, f"{stem}Config")(
        text_config=text,
        vision_config={**_vision(family), "initializer_range": 0.1},
        tie_word_embeddings=False,
        **dict(zip(names, ids, strict=True)),
    )
    model = getattr(transformers, f"{stem}ForConditionalGeneration")(config)
    directory = Path(tempfile.mkdtemp(prefix=f"tiny-{family}-", dir=_root()))
    _save(model, directory)
    _save_processor(directory, stem, clip_stem, tokenizer)
    return directory


def _save_processor(directory: Path, stem: str, clip_stem: str, tokenizer: Any) -> None:
    patch = {"patch_size": 16} if clip_stem == "Qwen3VL" else {}
    clips = getattr(transformers, f"{clip_stem}VideoProcessor")
    processor = getattr(transformers, f"{stem}Processor")(
        image_processor=Qwen2VLImageProcessorPil(size=_PICTURE_SIZE, **patch),
        video_processor=clips(size=_CLIP_SIZE, do_sample_frames=False, **patch),
        tokenizer=tokenizer,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(directory)


def load_processor(directory: Path) -> Any:
    """Transformers' processor of a checkpoint: pictures through Pillow, clips torchvision."""
    family = transformers.AutoConfig.from_pretrained(directory).model_type
    stem, clip_stem = CLASSES[family]
    clips = getattr(transformers, f"{clip_stem}VideoProcessor")
    return getattr(transformers, f"{stem}Processor")(
        image_processor=Qwen2VLImageProcessorPil.from_pretrained(directory),
        video_processor=clips.from_pretrained(directory),
        tokenizer=transformers.AutoTokenizer.from_pretrained(directory),
        chat_template=TEMPLATE,
    )
