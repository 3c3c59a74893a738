"""Seeded checkpoints that benchmarks run every engine on; written with transformers.

No vision-language weights can be had from the package index, so speed is measured on random
ones: the arithmetic is the same, only the text is nonsense.
"""

from __future__ import annotations

import itertools
import string
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

__all__ = ["byte_tokenizer", "llava_60m", "qwen_vl_small"]

_SPECIAL = (
    "<pad>",
    "<s>",
    "</s>",
    "<image>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
)
_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_tokenizer(vocab_size: int) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of exactly `vocab_size` tokens: bytes, then letter pairs and triples.

    English text takes about three characters a token. Pure.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letters = string.ascii_lowercase
    pairs = [(a, b) for a, b in itertools.product(["Ġ", *letters], letters)]
    triples = [(a + b, c) for (a, b), c in itertools.product(pairs, letters)]
    fours = [("Ġ" + a + b, c + d) for a, b, c, d in itertools.product(letters, repeat=4)]
    merges = [*pairs, *triples, *fours][: vocab_size - len(_SPECIAL) - len(alphabet)]
    pieces = [*_SPECIAL, *alphabet, *(a + b for a, b in merges)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in _SPECIAL]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", _SPECIAL.index("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        chat_template=_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def llava_60m(directory: Path, *, seed: int = 0) -> Path:
    """A LLaVA-1.5 with a picture of 576 tokens: CLIP 6 x 384 at 336 / 14, Llama 8 x 512.

    Changes: writes `directory`, unless a checkpoint is there already. Cost: seconds.
    """
    if (directory / "config.json").is_file():
        return directory
    torch.manual_seed(seed)
    model = transformers.LlavaForConditionalGeneration(_config())
    model.generation_config.eos_token_id = _SPECIAL.index("<|end|>")
    model.save_pretrained(directory)
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    )
    processor = transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=byte_tokenizer(32000),
        patch_size=14,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=_TEMPLATE,
    )
    processor.save_pretrained(directory)
    pictures.save_pretrained(directory)
    return directory


def _config() -> transformers.LlavaConfig:
    tower: Any = transformers.CLIPVisionConfig(
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=6,
        num_attention_heads=6,
        image_size=336,
        patch_size=14,
    )
    text: Any = transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        initializer_range=0.05,
        bos_token_id=_SPECIAL.index("<s>"),
        eos_token_id=_SPECIAL.index("<|end|>"),
        pad_token_id=_SPECIAL.index("<pad>"),
        tie_word_embeddings=False,
    )
    return transformers.LlavaConfig(
        vision_config=tower,
        text_config=text,
        image_token_index=_SPECIAL.index("<image>"),
        vision_feature_layer=-2,
        vision_feature_select_strategy="default",
        image_seq_length=576,
        tie_word_embeddings=False,
    )


_QWEN_WORDS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")


def qwen_vl_small(directory: Path, *, seed: int = 0) -> Path:
    """A Qwen2.5-VL of two layers a side whose processor has the family's own sizes.

    A picture of 1080p is some 2,600 tokens, as in the real models; encoding and prefilling them
    is cheap. Changes: writes `directory`, unless a checkpoint is there already.
    """
    if (directory / "config.json").is_file():
        return directory
    torch.manual_seed(seed)
    tokenizer = byte_tokenizer(1024)
    tokenizer.add_special_tokens({"additional_special_tokens": list(_QWEN_WORDS)})
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in _QWEN_WORDS}
    rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32768,
            "rope_parameters": rope,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_heads": 4,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config.eos_token_id = _SPECIAL.index("<|end|>")
    model.save_pretrained(directory)
    template = _TEMPLATE.replace("<{{ part.type }}>", _IN_PLACE)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    Qwen2VLImageProcessorPil().save_pretrained(directory)
    return directory


_IN_PLACE = "<|vision_start|><|{{ part.type }}_pad|><|vision_end|>"
