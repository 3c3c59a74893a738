"""Idefics3: tiles of 32 pixels, four tokens each; frames of clips are pictures."""

import functools
import json
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from mmserve.models import Checkpoint, build_model, read_config
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds, ItemPlan, Processor
from support.checkpoints import CHAT_TEMPLATE, _root, _save, _text_config, tiny_tokenizer
from support.proof import (
    CLIP_CASES,
    PICTURE_CASES,
    TEXT_CASES,
    Case,
    Clip,
    Family,
    Saying,
    picture,
    plain_inputs,
)

SIDE = 32
TILE_WORDS = (
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    *(f"<row_{row}_col_{column}>" for row, column in product(range(1, 5), range(1, 5))),
)
EXTREMES = (
    Case(
        "extreme sizes",
        (
            (
                "user",
                (
                    picture(7, 5, 3),
                    "then ",
                    picture(8, 400, 9),
                    picture(9, 6, 300),
                    "and ",
                    picture(10, 1, 1),
                    "Which is widest?",
                ),
            ),
        ),
    ),
)


def tokenizer_with(words: tuple[str, ...], template: str, **roles: str) -> Any:
    """The small tokenizer with one token for two newlines and with further control tokens.

    `roles` are names of control tokens, such as `image_token`.
    """
    spec = json.loads(tiny_tokenizer().backend_tokenizer.to_str())
    spec["model"]["vocab"]["ĊĊ"] = len(spec["model"]["vocab"])
    spec["model"]["merges"].append(["Ċ", "Ċ"])
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens(
        [AddedToken(word, special=True, normalized=False) for word in words]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="<|end|>",
        pad_token="<pad>",
        extra_special_tokens=roles,
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def small_config(config_class: Any, tokenizer: Any, **changes: Any) -> Any:
    """A small configuration of Idefics3 or SmolVLM."""
    vision = {
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "image_size": SIDE,
        "patch_size": 8,
        "initializer_range": 0.15,
    }
    return config_class(
        vision_config=vision,
        text_config=_text_config("llama", 2048, vocab_size=len(tokenizer)),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
        **changes,
    )


@functools.cache
def tiny_idefics3(*, is_split: bool = True, seed: int = 1) -> Path:
    """Idefics3: pictures of 128 pixels in tiles of 32, or squeezed into one tile."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_with(TILE_WORDS, CHAT_TEMPLATE, image_token="<image>")
    config = small_config(transformers.Idefics3Config, tokenizer)
    directory = Path(mkdtemp(prefix="tiny-idefics3-", dir=_root()))
    _save(transformers.Idefics3ForConditionalGeneration(config), directory)
    pictures = Idefics3ImageProcessorPil(
        size={"longest_edge": 4 * SIDE},
        max_image_size={"longest_edge": SIDE},
        do_image_splitting=is_split,
    )
    transformers.Idefics3Processor(
        image_processor=pictures,
        tokenizer=tokenizer,
        image_seq_len=4,
        chat_template=CHAT_TEMPLATE,
    ).save_pretrained(directory)
    return directory


def _as_pictures(parts: tuple[Any, ...]) -> Iterator[Any]:
    for part in parts:
        if isinstance(part, Clip):
            for number, frame in enumerate(part.frames, start=1):
                yield f"frame {number}:"
                yield frame
        else:
            yield part


def inputs(processor: Any, case: Case) -> Mapping[str, Any]:
    """A case with clips as labels and pictures."""
    turns: tuple[Saying, ...] = tuple(
        (role, tuple(_as_pictures(parts))) for role, parts in case.turns
    )
    return plain_inputs(processor, replace(case, turns=turns))


FAMILY = Family(
    "idefics3",
    tiny_idefics3,
    (*TEXT_CASES, *PICTURE_CASES, *CLIP_CASES, *EXTREMES),
    inputs,
)
"""Idefics3 through the engine against transformers."""


def random_sizes(num: int, longest: int) -> list[tuple[int, int]]:
    """Widths and heights in pixels, narrow ones as often as large ones."""
    dice = random.Random(5)
    return [
        (round(longest ** dice.random()), round(longest ** dice.random())) for _ in range(num)
    ]


def loaded(directory: Path, **changes: Any) -> Processor:
    """Our processor of a checkpoint, as if its config.json said so."""
    return load_processor(directory, {**read_config(directory), **changes})


def resaved(directory: Path, to: Path, **sections: Mapping[str, Any]) -> Path:
    """A copy of a checkpoint's settings with changes in sections of processor_config.json.

    The section `processor` stands for what is in none. Changes: the folder `to`.
    """
    for path in directory.glob("*.json"):
        shutil.copy(path, to)
    path = to / "processor_config.json"
    settings = json.loads(path.read_text())
    for name, changes in sections.items():
        (settings if name == "processor" else settings[name]).update(changes)
    path.write_text(json.dumps(settings))
    return to


def written(plan: ItemPlan, placeholder: str) -> str:
    """An item as the text that transformers' processors write."""
    pieces = plan.layout.pieces
    return "".join(placeholder * p if isinstance(p, int) else p for p in pieces)


def check_pictures(processor: Processor, reference: Any, sizes: list[tuple[int, int]]) -> None:
    """Assert that pictures of these sizes have transformers' text and exactly its pixels."""
    for number, (width, height) in enumerate(sizes):
        pixels = picture(number, width, height)
        expected = reference.image_processor(
            Image.fromarray(pixels), return_tensors="np", return_row_col_info=True
        )
        plan = processor.picture(width, height, Bounds())
        text = reference.replace_image_token(expected, 0)
        assert written(plan, "<image>") == text, (width, height)
        found = processor.inputs([pixels], plan.recipe)["pixel_values"]
        np.testing.assert_array_equal(found, expected["pixel_values"][0])
        num_tiles = len(found)
        assert (plan.num_patches, plan.layout.num_features) == (16 * num_tiles, 4 * num_tiles)


def check_eyes(directory: Path) -> None:
    """Assert that features are those of an item alone, and that no black tile is left out."""
    config = read_config(directory)
    eyes = build_model(
        Checkpoint(directory, config, torch.float32, torch.device("cpu"))
    ).pictures
    assert eyes is not None
    dice = np.random.default_rng(0)
    items = [
        {"pixel_values": dice.standard_normal((num, 3, SIDE, SIDE), np.float32)}
        for num in (1, 5, 3)
    ]
    items[1]["pixel_values"][2] = 0
    items[2]["pixel_values"][:] = 0
    with torch.inference_mode():
        together = eyes.encode(items)
        alone = [eyes.encode([item])[0] for item in items]
    for item, one, among in zip(items, alone, together, strict=True):
        assert one.shape == among.shape == (4 * len(item["pixel_values"]), 64)
        torch.testing.assert_close(one, among, atol=1e-5, rtol=0)
