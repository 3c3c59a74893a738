"""Reads a model directory's processor settings (transformers 4 and 5)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.vision.families.llava import ImageProcessor, ImageSteps
from mmserve.vision.families.settings import channels, per_channel, read_object

__all__ = ["TowerFacts", "load", "read_settings", "read_whole", "steps_of"]

_CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
_CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
_CLIP_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_center_crop": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": False,
    "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224},
    "image_mean": _CLIP_MEAN,
    "image_std": _CLIP_STD,
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
}
_SIGLIP_DEFAULTS: dict[str, Any] = {
    **_CLIP_DEFAULTS,
    "do_center_crop": False,
    "size": {"height": 224, "width": 224},
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
}
_ONEVISION_DEFAULTS: dict[str, Any] = {
    **_CLIP_DEFAULTS,
    "do_center_crop": False,
    "size": {"height": 384, "width": 384},
    "crop_size": None,
}
_DEFAULTS = {
    "CLIP": _CLIP_DEFAULTS,
    "Llava": _CLIP_DEFAULTS,
    "LlavaNext": _CLIP_DEFAULTS,
    "LlavaNextVideo": _CLIP_DEFAULTS,
    "LlavaOnevision": _ONEVISION_DEFAULTS,
    "Siglip": _SIGLIP_DEFAULTS,
}
_TOWERS = {"clip": "CLIP", "siglip": "Siglip"}
_PATCH_SIZES = {"CLIP": 32, "Siglip": 16}
_SUFFIXES = (
    "ImageProcessorFast",
    "ImageProcessorPil",
    "ImageProcessor",
    "VideoProcessor",
    "FeatureExtractor",
)


@dataclass(frozen=True, slots=True)
class TowerFacts:
    """What a picture processor must know of the tower that it works for.

    Args:
        family: CLIP or Siglip.
        side: of the pictures it takes, in pixels.
        patch_size: side of a patch in pixels.
        num_extra_tokens: see `ImageProcessor`.
    """

    family: str
    side: int
    patch_size: int
    num_extra_tokens: int

    @classmethod
    def parse(cls, config: Mapping[str, Any]) -> TowerFacts:
        """From a model's config.json. Pure. Raises UnsupportedModel."""
        vision = config.get("vision_config") or {}
        tower = str(vision.get("model_type", "clip_vision_model"))
        family = _TOWERS.get(tower.removesuffix("_vision_model"))
        if family is None:
            raise UnsupportedModel(
                f"vision tower {tower!r} is not supported", architecture=tower
            )
        drops_first = config.get("vision_feature_select_strategy", "default") == "default"
        has_class_token = family == "CLIP"
        return cls(
            family,
            int(vision.get("image_size", 224)),
            int(vision.get("patch_size", _PATCH_SIZES[family])),
            has_class_token - drops_first,
        )


def load(directory: Path, config: Mapping[str, Any]) -> ImageProcessor:
    """The picture processor of a LLaVA-like model.

    Args:
        directory: holds processor_config.json or preprocessor_config.json; without either, the
            tower's usual settings at its own size are taken.
        config: the model's config.json.

    Raises:
        UnsupportedModel: a processor or tower of another family.
        ModelRefused: the processor's pictures do not fit the tower.
    """
    return read_whole(directory, config, ("CLIP", "Llava", "Siglip"))


def read_whole(
    directory: Path,
    config: Mapping[str, Any],
    classes: Collection[str],
    kind: Literal["image", "video"] = "image",
) -> ImageProcessor:
    """A processor that shows the tower every picture whole, at one size.

    Args:
        directory: of the model.
        config: its config.json.
        classes: see `read_settings`.
        kind: see `read_settings`.

    Raises as `load`.
    """
    tower = TowerFacts.parse(config)
    steps = steps_of(read_settings(directory, tower, classes, kind))
    size = (tower.side, tower.side)
    if _output(steps) != size:
        raise ModelRefused(
            f"the processor of {directory.name} gives pictures of size {_output(steps)}, "
            f"the vision tower takes {size}"
        )
    token = config.get("image_token_id", config.get("image_token_index", 32000))
    return ImageProcessor(steps, size, tower.patch_size, tower.num_extra_tokens, int(token))


def read_settings(
    directory: Path,
    tower: TowerFacts,
    classes: Collection[str],
    kind: Literal["image", "video"] = "image",
) -> dict[str, Any]:
    """Settings of the directory over the defaults of their class; the tower's without any.

    Args:
        directory: of the model.
        tower: of the model.
        classes: names of processors that the family may have, without their endings.
        kind: whose settings; clips' are the pictures' where there are none.

    Raises UnsupportedModel for a processor of another class.
    """
    found = _found(directory, kind)
    family, side = tower.family, tower.side
    if not found:
        own = {"shortest_edge": side} if family == "CLIP" else {"height": side, "width": side}
        return {**_DEFAULTS[family], "size": own, "crop_size": side, "class": family}
    keys = ("image_processor_type", "video_processor_type", "feature_extractor_type")
    name = str(next((found[key] for key in keys if found.get(key)), ""))
    stem = next((name.removesuffix(s) for s in _SUFFIXES if name.endswith(s)), family)
    if stem not in classes:
        raise UnsupportedModel(
            f"picture processor {name!r} is not supported", architecture=name
        )
    given = {key: value for key, value in found.items() if value is not None}
    return {**_DEFAULTS[stem], **given, "class": stem}


def _found(directory: Path, kind: str) -> dict[str, Any]:
    """What the directory says of pictures or clips, new releases' file first."""
    joint = read_object(directory / "processor_config.json")
    if kind == "video":
        own = joint.get("video_processor") or read_object(
            directory / "video_preprocessor_config.json"
        )
        if own:
            return dict(own)
    return joint.get("image_processor") or read_object(directory / "preprocessor_config.json")


def steps_of(settings: Mapping[str, Any]) -> ImageSteps:
    """What settings do to a picture. Pure. Raises UnsupportedModel."""
    size = settings["size"] if settings["do_resize"] else {}
    if isinstance(size, int):
        size = {"shortest_edge": size}
    if set(size) - {"shortest_edge", "height", "width"}:
        raise UnsupportedModel(
            f"picture size {size!r} is not supported", architecture="processor"
        )
    pads = settings["do_pad"] and settings["class"] == "Llava"
    return replace(
        per_channel(settings),
        pad_colour=_colour(channels(settings["image_mean"])) if pads else None,
        shortest_edge=size.get("shortest_edge"),
        size=_pair(size) if "height" in size else None,
        crop=_pair(settings["crop_size"]) if settings["do_center_crop"] else None,
    )


def _output(steps: ImageSteps) -> tuple[int, int] | None:
    """Size of every result, or None if it depends on the picture."""
    edge = steps.shortest_edge
    square = (edge, edge) if edge is not None and steps.pad_colour is not None else None
    return steps.crop or square or steps.size


def _pair(size: int | Mapping[str, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else (int(size["height"]), int(size["width"]))


def _colour(mean: tuple[float, ...]) -> tuple[int, int, int]:
    red, green, blue = (int(value * 255) for value in mean)
    return red, green, blue
