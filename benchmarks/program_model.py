"""The seeded checkpoint that programs run on: a LLaVA whose pictures take 144 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from benchmarks.models import byte_tokenizer

__all__ = ["MODEL_NAME", "PICTURE_SIZE", "program_llava"]

MODEL_NAME = "seeded LLaVA, Llama 8 x 512 and CLIP 4 x 256"
PICTURE_SIZE = 168
_PATCH_SIZE = 14
_PICTURE_TOKENS = (PICTURE_SIZE // _PATCH_SIZE) ** 2
_VOCAB_SIZE = 8192


def program_llava(directory: Path, *, seed: int = 0, width: int = 512, depth: int = 8) -> Path:
    """A LLaVA-1.5 of about 35M parameters; it reads texts at two characters a token.

    Args:
        directory: where it is written, unless a checkpoint is there already.
        seed: of the weights.
        width: of a token of text.
        depth: layers of text.

    Changes: the directory. Cost: seconds.
    """
    if (directory / "config.json").is_file():
        return directory
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(_VOCAB_SIZE)
    model = transformers.LlavaForConditionalGeneration(_config(tokenizer, width, depth))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": PICTURE_SIZE},
        crop_size={"height": PICTURE_SIZE, "width": PICTURE_SIZE},
    )
    processor = transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=_PATCH_SIZE,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    processor.save_pretrained(directory)
    pictures.save_pretrained(directory)
    return directory


def _config(
    tokenizer: transformers.PreTrainedTokenizerFast, width: int, depth: int
) -> transformers.LlavaConfig:
    tower: Any = transformers.CLIPVisionConfig(
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=4,
        image_size=PICTURE_SIZE,
        patch_size=_PATCH_SIZE,
    )
    text: Any = transformers.LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=depth,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        initializer_range=0.05,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return transformers.LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=_PICTURE_TOKENS,
        tie_word_embeddings=False,
    )
