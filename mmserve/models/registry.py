"""From a path to a loaded model: which family it is, and who builds it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmserve.core import ModelRefused, NotFound, UnsupportedModel
from mmserve.models.checkpoint import Checkpoint
from mmserve.models.families import FAMILIES
from mmserve.models.gguf import GgufSource
from mmserve.models.hosted import build_hosted, is_hosted
from mmserve.models.ports import Model
from mmserve.models.refusal import refuse

__all__ = ["build_model", "read_config"]

_QUANTIZED = ("quantization_config", "compression_config", "quantization")
"""Fields that say, in one part of a configuration, that weights are not plain numbers."""


def read_config(path: Path) -> dict[str, Any]:
    """Configuration of a checkpoint directory or of a .gguf file.

    Pure. Raises NotFound, ModelRefused if it cannot be read, MissingExtra for GGUF.
    """
    if path.suffix == ".gguf" and path.is_file():
        return GgufSource(path).config
    file = path / "config.json"
    if not file.is_file():
        _refuse_adapter(path)
        raise NotFound(
            f"no model at {path}: config.json is missing", what="model", name=str(path)
        )
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelRefused(f"{file} is not JSON: {error}", path=str(file)) from error
    if not isinstance(config, dict):
        raise ModelRefused(f"{file} holds no object", path=str(file))
    return config


def build_model(checkpoint: Checkpoint) -> Model:
    """Load the weights into the family that the configuration names.

    A type without a family here goes through transformers' modules, if it has a class for it.

    Raises:
        UnsupportedModel: no such family, or a variant that is not computed.
        WeightMismatch: a tensor is missing, left over, or of another shape.
    """
    build = FAMILIES.get(checkpoint.family)
    if build is not None:
        _check_plain(checkpoint)
        return build(checkpoint)
    if checkpoint.path.is_dir() and is_hosted(checkpoint.family):
        return build_hosted(checkpoint)
    served = ", ".join(sorted(FAMILIES))
    message = f"model of type {checkpoint.family!r} cannot be served"
    raise UnsupportedModel(
        message,
        hint=f"served are {served}, and of a directory what the installed transformers builds "
        "as a causal or image-text-to-text model",
        architecture=checkpoint.family,
    )


def _refuse_adapter(path: Path) -> None:
    """Raise ModelRefused if an adapter lies at `path`, naming the model it belongs to."""
    file = path / "adapter_config.json"
    if not file.is_file():
        return
    found = re.search(r'"base_model_name_or_path"\s*:\s*"([^"]+)"', file.read_text("utf-8"))
    whose = f" for {found[1]}" if found else ""
    raise ModelRefused(
        f"{path} holds an adapter{whose}, not a model",
        hint="merge it into its model and save that (peft: merge_and_unload, save_pretrained)",
        path=str(path),
    )


def _check_plain(checkpoint: Checkpoint) -> None:
    """Raise UnsupportedModel if any part of the configuration says that it is quantized."""
    parts = [checkpoint.config, *checkpoint.config.values()]
    for part in parts:
        for name in _QUANTIZED:
            if isinstance(part, Mapping) and part.get(name):
                refuse(checkpoint.family, f"quantized weights ({name})")
