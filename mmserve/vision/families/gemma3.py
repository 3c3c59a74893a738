r"""Pictures of Gemma 3: one square size, so many tokens, which see each other both ways.

... "\n\n<start_of_image>" | x x x x | "<end_of_image>\n\n" ...     atomic between the bars
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from mmserve.core import MediaLayout, MediaStyle, ModelRefused, UnsupportedModel
from mmserve.vision.families.llava import ImageProcessor
from mmserve.vision.families.settings import (
    per_channel,
    picture_settings,
    processor_settings,
    token_spelling,
)
from mmserve.vision.identity import stable_digest
from mmserve.vision.processor import (
    Bounds,
    FrameFacts,
    Inputs,
    ItemPlan,
    Recipe,
    check_fixed_size,
)

__all__ = ["Gemma3Processor", "load"]

_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pan_and_scan": False,
    "size": {"height": 224, "width": 224},
    "resample": Image.Resampling.BILINEAR,
    "rescale_factor": 1 / 255,
    "image_mean": 0.5,
    "image_std": 0.5,
}
_IMAGE_TOKEN = 262144
_NUM_TOKENS = 256
_SIDE, _PATCH_SIZE = 224, 16
"""Of a SigLIP tower that does not say."""


@dataclass(frozen=True)
class Gemma3Processor:
    """See `Processor`.

    Args:
        pixels: what is done to the pixels; its token is the placeholder.
        num_tokens: of a picture.
        words: spellings of the tokens that begin and end a picture; chat templates write the
            first in a picture's place.
    """

    pixels: ImageProcessor
    num_tokens: int
    words: tuple[str, str]

    @property
    def style(self) -> MediaStyle:
        """See `Processor.style`."""
        return MediaStyle(image_token_id=self.pixels.image_token_id, image_text=self.words[0])

    @cached_property
    def fingerprint(self) -> bytes:
        """See `Processor.fingerprint`."""
        fields = (self.pixels.fingerprint.hex(), self.num_tokens, self.words)
        return stable_digest("gemma3", repr(fields))

    def picture(self, width: int, height: int, bounds: Bounds) -> ItemPlan:  # noqa: ARG002
        """See `Processor.picture`: the tower sees every picture at one size."""
        check_fixed_size(self.pixels.output[1], self.pixels.output[0], bounds)
        begin, end = self.words
        pieces = (f"\n\n{begin}", self.num_tokens, f"{end}\n\n")
        return ItemPlan(MediaLayout(pieces, is_atomic=True), self.pixels.num_patches)

    def clip(self, frames: Sequence[FrameFacts], bounds: Bounds) -> tuple[ItemPlan, ...]:
        """See `Processor.clip`: every frame is a picture."""
        plan = self.picture(0, 0, bounds)
        return tuple(replace(plan, frames=(place,)) for place in range(len(frames)))

    def inputs(self, frames: Sequence[NDArray[np.uint8]], recipe: Recipe) -> Inputs:
        """{"pixel_values": float32 [3, height, width]}; see `Processor.inputs`."""
        return self.pixels.inputs(frames, recipe)


def load(directory: Path, config: Mapping[str, Any]) -> Gemma3Processor:
    """The processor of Gemma 3.

    Args:
        directory: holds processor_config.json, and perhaps preprocessor_config.json and
            tokenizer_config.json; what they do not say is as transformers has it.
        config: the model's config.json.

    Raises:
        UnsupportedModel: a processor of another family, or steps that are not computed.
        ModelRefused: its pictures or tokens are not the model's.
    """
    tower = config.get("vision_config") or {}
    side = int(tower.get("image_size", _SIDE))
    settings = picture_settings(directory, _DEFAULTS, ("Gemma3ImageProcessor",))
    _check(settings)
    size = (int(settings["size"]["height"]), int(settings["size"]["width"]))
    num_tokens = int(config.get("mm_tokens_per_image", _NUM_TOKENS))
    num_written = int(processor_settings(directory).get("image_seq_length", num_tokens))
    if (size, num_written) != ((side, side), num_tokens):
        raise ModelRefused(
            f"the processor of {directory.name} makes {num_written} tokens of a picture of "
            f"{size[0]} x {size[1]} pixels; the model takes {num_tokens} of {side} x {side}",
            hint="correct size in preprocessor_config.json and image_seq_length in "
            "processor_config.json",
        )
    pixels = ImageProcessor(
        replace(per_channel(settings), size=size),
        size,
        int(tower.get("patch_size", _PATCH_SIZE)),
        image_token_id=int(
            config.get("image_token_id", config.get("image_token_index", _IMAGE_TOKEN))
        ),
    )
    begin = token_spelling(directory, "boi_token", "<start_of_image>")
    end = token_spelling(directory, "eoi_token", "<end_of_image>")
    return Gemma3Processor(pixels, num_tokens, (begin, end))


def _check(settings: Mapping[str, Any]) -> None:
    """Raise UnsupportedModel for steps that are not computed."""
    for field, is_served in (
        ("do_resize", bool(settings["do_resize"])),
        ("do_pan_and_scan", not settings["do_pan_and_scan"]),
        ("size", {"height", "width"} <= set(settings["size"])),
    ):
        if not is_served:
            message = (
                f"pictures of Gemma 3 with {field} = {settings[field]!r} are not supported"
            )
            raise UnsupportedModel(message, architecture="Gemma3ImageProcessor")
