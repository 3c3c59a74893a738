"""Mistral 3: Pixtral's tower, four patches merged into a token; frames are pictures."""

import functools
from pathlib import Path
from tempfile import mkdtemp

import torch
import transformers

from support.checkpoints import _root, _text_config
from support.families.pixtral import (
    frames_as_pictures,
    save_with_processor,
    tokenizer_with_words,
    tower_config,
)
from support.proof import CLIP_CASES, PICTURE_CASES, TEXT_CASES, Family


@functools.cache
def tiny_mistral3(*, seed: int = 3) -> Path:
    """Mistral 3: patches of 8 merged by 2 x 2, at most 96 pixels a side."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with_words()
    config = transformers.Mistral3Config(
        vision_config=tower_config(),
        text_config=_text_config("mistral", 2048, vocab_size=len(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    directory = Path(mkdtemp(prefix="tiny-mistral3-", dir=_root()))
    model = transformers.Mistral3ForConditionalGeneration(config)
    save_with_processor(model, tokenizer, 2, directory)
    return directory


FAMILY = Family(
    "mistral3",
    tiny_mistral3,
    (*TEXT_CASES, *PICTURE_CASES, *CLIP_CASES),
    inputs=frames_as_pictures,
)
"""Mistral 3 through the engine against transformers."""
