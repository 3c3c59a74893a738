"""Tiny seeded checkpoints, written with transformers and shared by all tests of a session.

Every function gives a directory that `load_model`, transformers' auto classes and
`AutoProcessor` can read. The same arguments give the same directory; nobody may write into it.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

__all__ = [
    "CHAT_TEMPLATE",
    "IMAGE_TOKEN_ID",
    "SPECIAL_TOKENS",
    "tiny_llama",
    "tiny_llava",
    "tiny_tokenizer",
]

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SPECIAL_TOKENS = (
    "<pad>",
    "<s>",
    "</s>",
    "<image>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|end|>",
)
"""Ids 0 to 7; the 256 bytes follow, then a few merged tokens."""
IMAGE_TOKEN_ID = SPECIAL_TOKENS.index("<image>")
_MERGES = (
    "t h|h e|i n|a n|e r|o n|r e|a t|e n|o r|Ġ t|Ġ a|Ġ s|Ġ w|Ġ i|Ġt he|th e|in g|n d|Ġa nd|Ġi s"
)
CHAT_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>"
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<{{ part.type }}>{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_TEXT_CLASSES = {
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM),
    "gemma2": (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),
    "gemma3": (transformers.Gemma3TextConfig, transformers.Gemma3ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM),
    "phi3": (transformers.Phi3Config, transformers.Phi3ForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "smollm3": (transformers.SmolLM3Config, transformers.SmolLM3ForCausalLM),
}


@functools.cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="mmserve-checkpoints-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def tiny_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of special tokens, all bytes and a few merges; adds `<s>` itself."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(pair.split(" ")) for pair in _MERGES.split("|")]
    pieces = [*SPECIAL_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", SPECIAL_TOKENS.index("<s>"))]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens={"image_token": "<image>"},
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@functools.cache
def _vocab_size() -> int:
    return len(tiny_tokenizer())


def _text_config(family: str, context: int, **changes: Any) -> Any:
    values: dict[str, Any] = {
        "vocab_size": _vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": context,
        "initializer_range": 0.12,
        "bos_token_id": SPECIAL_TOKENS.index("<s>"),
        "eos_token_id": SPECIAL_TOKENS.index("<|end|>"),
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
        "tie_word_embeddings": False,
    }
    if family == "mistral":
        values["sliding_window"] = None
    return _TEXT_CLASSES[family][0](**{**values, **changes})


def _plain(value: Any) -> Any:
    """Pairs as a dictionary, other tuples as lists: what a configuration takes."""
    if not isinstance(value, tuple):
        return value
    if value and all(isinstance(x, tuple) and isinstance(x[0], str) for x in value):
        return {key: _plain(inner) for key, inner in value}
    return [_plain(inner) for inner in value]


def _save(model: Any, directory: Path, max_shard_size: str = "1GB") -> None:
    """Give biases and norms values that matter, and write. Changes: `model`."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".bias"):
                parameter.normal_(0, 0.1)
            elif "norm" in name and name.endswith("weight"):
                parameter.normal_(1, 0.1)
    model.generation_config.eos_token_id = [
        SPECIAL_TOKENS.index("</s>"),
        SPECIAL_TOKENS.index("<|end|>"),
    ]
    model.save_pretrained(directory, max_shard_size=max_shard_size)


@functools.cache
def tiny_llama(
    family: str = "llama",
    *,
    context: int = 512,
    seed: int = 0,
    max_shard_size: str = "1GB",
    changes: tuple[tuple[str, Any], ...] = (),
) -> Path:
    """A text model of a family in `_TEXT_CLASSES` with a tokenizer.

    `changes` are further fields of its configuration; dictionaries as tuples of pairs.
    """
    torch.manual_seed(seed)
    fields = {key: _plain(value) for key, value in changes}
    config = _text_config(family, context, **fields)
    model = _TEXT_CLASSES[family][1](config)
    directory = Path(tempfile.mkdtemp(prefix=f"tiny-{family}-", dir=_root()))
    _save(model, directory, max_shard_size)
    tiny_tokenizer().save_pretrained(directory)
    return directory


@functools.cache
def tiny_llava(
    tower: str = "clip",
    *,
    layer: int | tuple[int, ...] = -2,
    strategy: str = "default",
    image_size: int = 56,
    patch_size: int = 14,
    family: str = "llama",
    context: int = 512,
    seed: int = 0,
) -> Path:
    """A LLaVA with a `clip` or `siglip` tower, tokenizer, picture processor and chat template.

    A picture is (image_size / patch_size) ** 2 tokens: one less for SigLIP with strategy
    `default`, one more for CLIP with `full`.
    """
    torch.manual_seed(seed)
    tower_config = {
        "clip": transformers.CLIPVisionConfig,
        "siglip": transformers.SiglipVisionConfig,
    }[tower](
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=3,
        image_size=image_size,
        patch_size=patch_size,
    )
    num_patches = (image_size // patch_size) ** 2
    extra_tokens = int(tower == "clip")
    config = transformers.LlavaConfig(
        vision_config=tower_config,
        text_config=_text_config(family, context),
        image_token_index=IMAGE_TOKEN_ID,
        vision_feature_layer=layer if isinstance(layer, int) else list(layer),
        vision_feature_select_strategy=strategy,
        image_seq_length=num_patches + extra_tokens - int(strategy == "default"),
        tie_word_embeddings=False,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    directory = Path(tempfile.mkdtemp(prefix=f"tiny-llava-{tower}-", dir=_root()))
    _save(model, directory)
    _save_processor(directory, tower, image_size, patch_size, strategy)
    return directory


def _save_processor(
    directory: Path, tower: str, image_size: int, patch_size: int, strategy: str
) -> None:
    size = {"height": image_size, "width": image_size}
    pictures: Any
    if tower == "clip":
        pictures = CLIPImageProcessorPil(size={"shortest_edge": image_size}, crop_size=size)
    else:
        pictures = SiglipImageProcessorPil(size=size)
    processor = transformers.LlavaProcessor(
        image_processor=pictures,
        tokenizer=tiny_tokenizer(),
        patch_size=patch_size,
        vision_feature_select_strategy=strategy,
        num_additional_image_tokens=int(tower == "clip"),
        chat_template=CHAT_TEMPLATE,
    )
    processor.save_pretrained(directory)
    pictures.save_pretrained(directory)
