"""Pixtral as a LLaVA, and what Mistral 3 shares with it; frames of clips are pictures."""

import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken
from transformers.image_utils import ChannelDimension
from transformers.models.pixtral.image_processing_pil_pixtral import (
    PixtralImageProcessorPil,
    get_resize_output_image_size,
)

from mmserve.models import Checkpoint, build_model, read_config
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds, Processor
from support.checkpoints import _root, _save, _text_config, tiny_tokenizer
from support.proof import (
    CLIP_CASES,
    PICTURE_CASES,
    TEXT_CASES,
    Case,
    Clip,
    Family,
    picture,
    plain_inputs,
)

WORDS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
CHAT_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message.role }}|>"
    "{% for part in message.content %}"
    "{% if part.type == 'text' %}{{ part.text }}{% else %}[IMG]{% endif %}"
    "{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
PATCH_SIZE = 8
LONGEST_EDGE = 96


def tower_config() -> Any:
    """A small Pixtral tower."""
    return transformers.PixtralVisionConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=3,
        image_size=LONGEST_EDGE,
        patch_size=PATCH_SIZE,
        initializer_range=0.15,
    )


def save_with_processor(model: Any, tokenizer: Any, merge: int, directory: Path) -> None:
    """Write model, tokenizer and processor. Changes: norms and biases of `model`."""
    _save(model, directory)
    pictures = PixtralImageProcessorPil(
        size={"longest_edge": LONGEST_EDGE}, patch_size=PATCH_SIZE * merge
    )
    transformers.PixtralProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=PATCH_SIZE,
        spatial_merge_size=merge,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)


def tokenizer_with_words() -> Any:
    """The small tokenizer with the words of a picture behind the others."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([AddedToken(word, special=True, normalized=False) for word in WORDS])
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


@functools.cache
def tiny_pixtral(*, seed: int = 3) -> Path:
    """Pixtral as transformers writes it: patches of 8, at most 96 pixels a side."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with_words()
    config = transformers.LlavaConfig(
        vision_config=tower_config(),
        text_config=_text_config("mistral", 2048, vocab_size=len(tokenizer)),
        image_token_index=tokenizer.convert_tokens_to_ids("[IMG]"),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        image_seq_length=1,
    )
    directory = Path(mkdtemp(prefix="tiny-pixtral-", dir=_root()))
    model = transformers.LlavaForConditionalGeneration(config)
    save_with_processor(model, tokenizer, 1, directory)
    return directory


def frames_as_pictures(processor: Any, case: Case) -> Mapping[str, Any]:
    """Transformers' inputs of a case whose clips are labels and pictures."""
    turns = tuple((role, tuple(_stills(parts))) for role, parts in case.turns)
    return plain_inputs(processor, replace(case, turns=turns))


def _stills(parts: tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        if not isinstance(part, Clip):
            yield part
            continue
        for number, frame in enumerate(part.frames, start=1):
            yield f"frame {number}:"
            yield frame


def processor_of(directory: Path) -> Processor:
    """Our processor of a checkpoint."""
    return load_processor(directory, read_config(directory))


def variant(directory: Path, changes: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint as if its config.json said so; values of tables are put into them."""
    config = read_config(directory)
    for key, value in changes.items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    return Checkpoint(directory, config, torch.float32, torch.device("cpu"))


def random_sizes(seed: int, num: int, longest: int = 1500) -> list[tuple[int, int]]:
    """Widths and heights in pixels, small ones as often as large ones."""
    dice = random.Random(seed)
    sides = [round(longest ** dice.random()) for _ in range(2 * num)]
    return list(zip(sides[:num], sides[num:], strict=True))


def check_sizes(directory: Path, reference: Any) -> None:
    """Assert that 500 sizes are written as transformers' processor writes them."""
    ours = processor_of(directory)
    unit = reference.patch_size * reference.spatial_merge_size
    num_compared = 0
    for width, height in random_sizes(1, 500):
        pixels = np.broadcast_to(np.uint8(0), (height, width, 3))
        size = get_resize_output_image_size(
            pixels, LONGEST_EDGE, unit, input_data_format=ChannelDimension.LAST
        )
        plan = ours.picture(width, height, Bounds())
        assert all(side > 0 for side in plan.recipe if isinstance(side, int))
        if 0 in size:
            continue
        text = reference.replace_image_token({"image_sizes": [size]}, 0)
        pieces = ["[IMG]" * p if isinstance(p, int) else p for p in plan.layout.pieces]
        assert ("".join(pieces), plan.recipe) == (text, size), (width, height)
        assert plan.num_patches == size[0] * size[1] // reference.patch_size**2
        num_compared += 1
    assert num_compared > 400


def check_inputs(directory: Path, reference: Any) -> None:
    """Assert that pixels are prepared exactly as by transformers' Pillow backend."""
    ours = processor_of(directory)
    unit = reference.patch_size * reference.spatial_merge_size
    for width, height in ((96, 96), (131, 47), (33, 90), (8, 7), (400, 20), (95, 200)):
        pixels = picture(width, width, height)
        expected = reference.image_processor(
            Image.fromarray(pixels), patch_size=unit, return_tensors="np"
        )
        recipe = ours.picture(width, height, Bounds()).recipe
        found = ours.inputs([pixels], recipe)["pixel_values"]
        np.testing.assert_array_equal(found, expected["pixel_values"][0])


def check_eyes(directory: Path) -> None:
    """Assert that padding, company and its bound leave a picture's features as they are."""
    eyes = build_model(variant(directory, {})).pictures
    assert eyes is not None
    ours = processor_of(directory)
    items = []
    for width, height in ((96, 96), (131, 47), (33, 90), (8, 7), (60, 96)):
        recipe = ours.picture(width, height, Bounds()).recipe
        items.append(ours.inputs([picture(height, width, height)], recipe))
    with torch.inference_mode():
        together = eyes.encode(items)
        alone = [eyes.encode([item])[0] for item in items]
    for one, among in zip(alone, together, strict=True):
        assert one.shape == among.shape
        torch.testing.assert_close(one, among, atol=1e-5, rtol=0)


FAMILY = Family(
    "pixtral",
    tiny_pixtral,
    (*TEXT_CASES, *PICTURE_CASES, *CLIP_CASES),
    inputs=frames_as_pictures,
)
"""Pixtral through the engine against transformers."""
