"""Settings of a checkpoint's processors over the defaults of their classes.

pictures   processor_config.json "image_processor", else preprocessor_config.json
clips      processor_config.json "video_processor", else video_preprocessor_config.json,
           else preprocessor_config.json
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.vision.families.qwen_vl.geometry import ClipLimits, Limits
from mmserve.vision.families.qwen_vl.pixels import Patches
from mmserve.vision.families.settings import read_object

__all__ = ["clip_settings", "picture_settings"]

_PICTURES: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
    "resample": Image.Resampling.BICUBIC,
    "rescale_factor": 1 / 255,
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
}
_CLIPS: dict[str, Any] = {
    **_PICTURES,
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    "cap_pixels_per_frame": False,
    "max_video_tokens": 128000,
}
_SHARED_CLIPS: dict[str, Any] = {
    **_CLIPS,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
    "image_mean": (0.5, 0.5, 0.5),
    "image_std": (0.5, 0.5, 0.5),
    "patch_size": 16,
    "max_video_tokens": 768,
}
_SHARED_STEM = "Qwen3VL"
_SPELLINGS = {"min_pixels": "shortest_edge", "max_pixels": "longest_edge"}
_SUFFIXES = ("Fast", "Pil", "")


def picture_settings(directory: Path) -> tuple[Limits, Patches]:
    """How pictures are read. Raises UnsupportedModel for a processor of another family."""
    found = read_object(directory / "processor_config.json").get("image_processor")
    found = found or read_object(directory / "preprocessor_config.json")
    _stem(found.get("image_processor_type"), "ImageProcessor", ("Qwen2VL",), "Qwen2VL")
    settings = _filled(found, _PICTURES)
    patches = Patches.parse(settings)
    return _limits(settings, patches.unit), patches


def clip_settings(directory: Path, family: str) -> tuple[ClipLimits, Patches]:
    """How clips are read; `family` decides where no class is named. Raises as above."""
    found = read_object(directory / "processor_config.json").get("video_processor")
    found = found or read_object(directory / "video_preprocessor_config.json")
    found = found or read_object(directory / "preprocessor_config.json")
    usual = _SHARED_STEM if family.startswith("qwen3") else "Qwen2VL"
    known = ("Qwen2VL", _SHARED_STEM)
    stem = _stem(found.get("video_processor_type"), "VideoProcessor", known, usual)
    is_shared = stem == _SHARED_STEM
    settings = _filled(found, _SHARED_CLIPS if is_shared else _CLIPS)
    patches = Patches.parse(settings)
    cap = int(settings["max_video_tokens"]) if settings["cap_pixels_per_frame"] else None
    return ClipLimits(_limits(settings, patches.unit), patches.group, is_shared, cap), patches


def _stem(name: str | None, kind: str, known: tuple[str, ...], usual: str) -> str:
    """The family that a class name begins with. Raises UnsupportedModel."""
    if name is None:
        return usual
    for stem in known:
        if name in [f"{stem}{kind}{suffix}" for suffix in _SUFFIXES]:
            return stem
    raise UnsupportedModel(f"processor {name!r} is not supported", architecture=name)


def _filled(found: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with defaults, and limits in either spelling."""
    given = {key: value for key, value in found.items() if value is not None}
    size = {_SPELLINGS.get(key, key): value for key, value in (given.get("size") or {}).items()}
    size.update({new: given[old] for old, new in _SPELLINGS.items() if old in given})
    settings = {**defaults, **given, "size": {**defaults["size"], **size}}
    unknown = sorted(set(size) - set(_SPELLINGS.values()))
    if unknown or not settings["do_resize"]:
        what = f"size {size!r}" if unknown else "do_resize = false"
        raise UnsupportedModel(f"{what} of a processor is not supported", architecture="qwen")
    return settings


def _limits(settings: Mapping[str, Any], unit: int) -> Limits:
    size = settings["size"]
    limits = Limits(unit, int(size["shortest_edge"]), int(size["longest_edge"]))
    if limits.min_pixels > limits.max_pixels:
        raise ModelRefused(f"the processor's size {size!r} has a minimum above its maximum")
    return limits
