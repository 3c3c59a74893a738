"""Gemma 3: pictures of 16 tokens that see each other both ways, windows of 8; frames too."""

import functools
import json
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

from support.checkpoints import _root, _save, tiny_tokenizer
from support.families.pixtral import frames_as_pictures
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Case, Family, picture

TOKENS = {
    "boi_token": "<start_of_image>",
    "image_token": "<image_soft_token>",
    "eoi_token": "<end_of_image>",
}
NUM_TOKENS = 16
SIDE, PATCH_SIZE = 56, 7
CHAT_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>\n"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}<start_of_image>{% endif %}"
    "{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def _tokenizer() -> Any:
    """The small tokenizer with a picture's tokens, and one token for two line ends."""
    tokenizer = tiny_tokenizer()
    plan = json.loads(tokenizer.backend_tokenizer.to_str())
    plan["model"]["merges"].append(["Ċ", "Ċ"])
    plan["model"]["vocab"]["ĊĊ"] = len(plan["model"]["vocab"])
    backend = Tokenizer.from_str(json.dumps(plan))
    backend.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in TOKENS.values()]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens=TOKENS,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


@functools.cache
def tiny_gemma3(*, seed: int = 5, window: int = 8) -> Path:
    """Gemma 3 with two sliding layers to a full one; pictures are longer than `window`."""
    torch.manual_seed(seed)
    tokenizer = _tokenizer()
    text = transformers.Gemma3TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        query_pre_attn_scalar=24,
        max_position_embeddings=2048,
        sliding_window=window,
        layer_types=[
            "sliding_attention",
            "full_attention",
            "sliding_attention",
            "sliding_attention",
        ],
        initializer_range=0.15,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    tower = transformers.SiglipVisionConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=SIDE,
        patch_size=PATCH_SIZE,
        vision_use_head=False,
    )
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=tower,
        mm_tokens_per_image=NUM_TOKENS,
        boi_token_index=tokenizer.convert_tokens_to_ids(TOKENS["boi_token"]),
        eoi_token_index=tokenizer.convert_tokens_to_ids(TOKENS["eoi_token"]),
        image_token_index=tokenizer.convert_tokens_to_ids(TOKENS["image_token"]),
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.3)
    directory = Path(mkdtemp(prefix="tiny-gemma3-", dir=_root()))
    _save(model, directory)
    transformers.Gemma3Processor(
        image_processor=Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE}),
        tokenizer=tokenizer,
        image_seq_length=NUM_TOKENS,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)
    return directory


LINE_ENDS = Case(
    "line ends",
    (("user", ("Look:\n", picture(8, 50, 60), "\nand:\n\n", picture(9, 60, 50), "\n\n\nSo?")),),
)
"""Line ends of the text beside those that a picture brings."""

FAMILY = Family(
    "gemma3",
    tiny_gemma3,
    (*TEXT_CASES, *PICTURE_CASES, LINE_ENDS, *CLIP_CASES),
    inputs=frames_as_pictures,
)
"""Gemma 3 through the engine against transformers."""

SHARED = Family(
    "gemma3-shared",
    tiny_gemma3,
    tuple(
        Case(text, (("user", (picture(7, 90, 70), picture(17, 60, 60), text)),))
        for text in ("What is it?", "Which colours are there?", "What lies beside the cube?")
    ),
)
"""Questions about the same two pictures."""
