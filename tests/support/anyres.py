"""What families of pictures of any resolution must have in common with transformers."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

from mmserve.models import Checkpoint, build_model, read_config
from mmserve.vision.families import load_processor
from mmserve.vision.families.anyres import AnyresProcessor
from mmserve.vision.families.llava import ImageProcessor, ImageSteps
from mmserve.vision.processor import Bounds
from support.proof import Case, Clip, picture

SIZES = (
    (96, 64),
    (64, 96),
    (56, 56),
    (28, 28),
    (211, 9),
    (9, 211),
    (400, 3),
    (2, 300),
    (1, 1),
    (5, 4),
    (84, 28),
    (83, 29),
    (33, 90),
    (131, 47),
    (181, 192),
    (192, 192),
    (67, 66),
    (250, 251),
    (60, 45),
    (31, 65),
)
"""Widths and heights in pixels: plain, extreme, small, on and beside the edges of tiles."""


def with_frames(case: Case, side: int, *, is_cropped: bool) -> Case:
    """A case whose frames have a tower's size, as Pillow resizes them.

    Torchvision, which resizes transformers' clips, rounds a few values to the other side.

    Args:
        case: to copy.
        side: of the tower's pictures in pixels.
        is_cropped: whether proportions are kept and the middle is cut out.
    """
    size: Any = {"shortest_edge": side} if is_cropped else {"size": (side, side)}
    crop = (side, side) if is_cropped else None
    steps = ImageSteps(**size, crop=crop, factor=None)
    frame = ImageProcessor(steps, (side, side), side)

    def shown(pixels: np.ndarray) -> np.ndarray:
        values = frame.inputs([pixels], ())["pixel_values"]
        return values.astype(np.uint8).transpose(1, 2, 0)

    def part(said: Any) -> Any:
        return (
            Clip(tuple(map(shown, said.frames)), said.fps) if isinstance(said, Clip) else said
        )

    turns = tuple((role, tuple(map(part, parts))) for role, parts in case.turns)
    return replace(case, turns=turns)


def processor_of(directory: Path, changes: Mapping[str, Any] | None = None) -> AnyresProcessor:
    """Our processor of a checkpoint, as if its config.json said so."""
    found = load_processor(directory, {**read_config(directory), **(changes or {})})
    assert isinstance(found, AnyresProcessor)
    return found


def random_sizes(seed: int, num: int, longest: int) -> list[tuple[int, int]]:
    """Widths and heights in pixels, small ones as often as large ones."""
    dice = random.Random(seed)
    sides = [round(longest ** dice.random()) for _ in range(2 * num)]
    return list(zip(sides[:num], sides[num:], strict=True))


def check_numbers(ours: AnyresProcessor, reference: Any, longest: int) -> None:
    """Assert that 500 sizes have as many tokens as transformers' processor writes."""
    side = ours.tile.output[0]
    tile = np.zeros((1, 3, side, side), np.float32)
    numbers = set()
    for width, height in random_sizes(1, 500, longest):
        media = {
            "image_sizes": [(height, width)],
            "pixel_values": [tile],
            "batch_num_images": [1],
        }
        text = reference.replace_image_token(media, 0)
        plan = ours.picture(width, height, Bounds())
        expected = len(text) // len(reference.image_token)
        assert plan.layout.pieces == (expected,), (width, height)
        numbers.add(expected)
    assert len(numbers) > 10


def check_pixels(ours: AnyresProcessor, reference: Any) -> None:
    """Assert that tiles are exactly those of transformers' Pillow backend."""
    for width, height in SIZES:
        pixels = picture(width, width, height)
        plan = ours.picture(width, height, Bounds())
        tiles = ours.inputs([pixels], plan.recipe)["tiles"]
        expected = reference(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
        np.testing.assert_array_equal(tiles, expected)
        assert plan.num_patches == len(tiles) * ours.tile.num_patches


@torch.inference_mode()
def check_features(directory: Path, sizes: Sequence[tuple[int, int]] = SIZES) -> None:
    """Assert that features, alone and together, are those of transformers' model."""
    ours = processor_of(directory)
    eyes = build_model(checkpoint_of(directory)).pictures
    assert eyes is not None
    model = transformers.AutoModelForImageTextToText.from_pretrained(
        directory, dtype=torch.float32
    ).eval()
    items, plans, expected = [], [], []
    for width, height in sizes:
        plans.append(ours.picture(width, height, Bounds()))
        items.append(ours.inputs([picture(height, width, height)], plans[-1].recipe))
        tiles = torch.tensor(items[-1]["tiles"])[None]
        found = model.get_image_features(tiles, torch.tensor([[height, width]]))
        expected.append(found.pooler_output[0])
    together = eyes.encode(items)
    for item, plan, among, wanted in zip(items, plans, together, expected, strict=True):
        (alone,) = eyes.encode([item])
        assert alone.shape[0] == plan.layout.num_features
        torch.testing.assert_close(alone, among, atol=1e-5, rtol=0)
        torch.testing.assert_close(alone, wanted, atol=2e-5, rtol=1e-5)


def checkpoint_of(directory: Path, changes: Mapping[str, Any] | None = None) -> Checkpoint:
    """The checkpoint in float32 on the CPU, as if its config.json said so."""
    config = {**read_config(directory), **(changes or {})}
    return Checkpoint(directory, config, torch.float32, torch.device("cpu"))
