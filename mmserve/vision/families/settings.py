"""Settings of pictures and clips as transformers saves them, all in one file or in several.

    processor_config.json            {"image_processor": {…}, "video_processor": {…}, …}
    preprocessor_config.json         {…}     of pictures, and of clips if nothing else is there
    video_preprocessor_config.json   {…}     of clips
    tokenizer_config.json            {…}     spellings of tokens by role

Nulls count as not given.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmserve.core import ModelRefused, UnsupportedModel
from mmserve.vision.families.llava import ImageSteps

__all__ = [
    "channels",
    "clip_settings",
    "per_channel",
    "picture_settings",
    "processor_settings",
    "read_object",
    "token_spelling",
]

_SUFFIXES = ("Fast", "Pil")


def processor_settings(directory: Path) -> dict[str, Any]:
    """What processor_config.json says. Blocks on disk."""
    return _read(directory / "processor_config.json")


def picture_settings(
    directory: Path, defaults: Mapping[str, Any], classes: tuple[str, ...]
) -> dict[str, Any]:
    """Settings of pictures over `defaults`.

    Args:
        directory: of the checkpoint.
        defaults: of the family.
        classes: names in transformers of what does as the family does.

    Blocks on disk. Raises UnsupportedModel for another class.
    """
    found = _given(processor_settings(directory).get("image_processor"))
    found = found or _read(directory / "preprocessor_config.json")
    name = str(found.get("image_processor_type", classes[0]))
    stem = name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    if stem not in classes:
        message = f"picture processor {name!r} is not supported"
        raise UnsupportedModel(message, architecture=name)
    return {**defaults, **found}


def clip_settings(directory: Path, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of clips over `defaults`. Blocks on disk."""
    found = _given(processor_settings(directory).get("video_processor"))
    for name in ("video_preprocessor_config.json", "preprocessor_config.json"):
        found = found or _read(directory / name)
    return {**defaults, **found}


def token_spelling(directory: Path, role: str, default: str) -> str:
    """How the tokenizer spells the token of a role such as `video_token`. Blocks on disk."""
    settings = _read(directory / "tokenizer_config.json")
    found = settings.get(role) or _given(settings.get("extra_special_tokens")).get(role)
    if isinstance(found, Mapping):
        found = found.get("content")
    return str(found or default)


def per_channel(settings: Mapping[str, Any]) -> ImageSteps:
    """The steps that change values and no sizes. Pure."""
    is_normalized = bool(settings["do_normalize"])
    return ImageSteps(
        resample=int(settings["resample"]),
        factor=float(settings["rescale_factor"]) if settings["do_rescale"] else None,
        mean=channels(settings["image_mean"]) if is_normalized else None,
        std=channels(settings["image_std"]) if is_normalized else None,
    )


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or {} if there is no such file. Raises ModelRefused."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(f"{path} is not JSON: {error}", path=str(path)) from error
    return found if isinstance(found, dict) else {}


def _read(path: Path) -> dict[str, Any]:
    return _given(read_object(path))


def _given(settings: object) -> dict[str, Any]:
    if not isinstance(settings, Mapping):
        return {}
    return {key: value for key, value in settings.items() if value is not None}


def channels(value: float | list[float]) -> tuple[float, ...]:
    """A value a channel, red, green and blue, given as one for all or as three. Pure."""
    return (float(value),) * 3 if isinstance(value, int | float) else tuple(map(float, value))
