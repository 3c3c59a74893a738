"""Processors by family: how each sizes, writes and prepares media.

A family is one file here and one in `models/families`; see docs/guides/add-a-family.md.
Called by `vision.plane` through the port in `vision.processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mmserve.core import UnsupportedModel
from mmserve.vision.families import llava_config
from mmserve.vision.processor import Processor

__all__ = ["PROCESSORS", "load_processor"]

PROCESSORS: Mapping[str, Callable[[Path, Mapping[str, Any]], Processor]] = {
    "llava": llava_config.load,
}
"""Makers of processors by model type; a new family is a line here."""


def load_processor(directory: Path, config: Mapping[str, Any]) -> Processor:
    """The processor of a checkpoint.

    Args:
        directory: holds processor_config.json or preprocessor_config.json.
        config: the model's config.json.

    Raises UnsupportedModel, ModelRefused if it does not fit the model.
    """
    word = str(config.get("model_type", "llava"))
    if word not in PROCESSORS:
        raise UnsupportedModel(f"pictures of {word!r} are not supported", architecture=word)
    return PROCESSORS[word](directory, config)
