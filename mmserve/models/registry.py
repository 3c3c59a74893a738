"""Families by the word that config.json uses, and how each is built."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mmserve.core import ModelRefused, NotFound, UnsupportedModel
from mmserve.models.config import DecoderConfig, LlavaConfig
from mmserve.models.decoder import Decoder
from mmserve.models.gguf import GgufSource
from mmserve.models.llava import PictureEncoder
from mmserve.models.weights import SafetensorsSource, Weights

__all__ = ["FAMILIES", "Model", "build_model", "read_config"]

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A loaded model: a decoder, and a picture encoder if it sees pictures."""

    family: str
    decoder: Decoder
    pictures: PictureEncoder | None = None


def _build_text(config: Config, weights: Weights) -> Model:
    decoder = Decoder(DecoderConfig.parse(config), weights)
    weights.finish()
    return Model(str(config["model_type"]), decoder)


def _build_llava(config: Config, weights: Weights) -> Model:
    parsed = LlavaConfig.parse(config)
    model = Model("llava", Decoder(parsed.text, weights), PictureEncoder(parsed, weights))
    deeper = range(max(parsed.feature_depths), parsed.tower.num_layers)
    unread = [f"vision.encoder.layers.{number}." for number in deeper]
    weights.finish(ignored=["vision.post_layernorm.", "vision.head.", *unread])
    return model


FAMILIES: Mapping[str, Callable[[Config, Weights], Model]] = {
    "llama": _build_text,
    "llava": _build_llava,
    "mistral": _build_text,
    "qwen2": _build_text,
    "qwen3": _build_text,
}
"""Builders by model type; a new family is a line here."""


def read_config(path: Path) -> dict[str, Any]:
    """Configuration of a checkpoint directory or of a .gguf file.

    Pure. Raises NotFound, ModelRefused if it cannot be read, MissingExtra for GGUF.
    """
    if path.suffix == ".gguf" and path.is_file():
        return GgufSource(path).config
    file = path / "config.json"
    if not file.is_file():
        raise NotFound(
            f"no model at {path}: config.json is missing", what="model", name=str(path)
        )
    try:
        config = json.loads(file.read_text())
    except ValueError as error:
        raise ModelRefused(f"{file} is not JSON: {error}", path=str(file)) from error
    if not isinstance(config, dict):
        raise ModelRefused(f"{file} holds no object", path=str(file))
    return config


def build_model(path: Path, config: Config, dtype: torch.dtype, device: torch.device) -> Model:
    """Load the weights at `path` into the family that `config` names.

    Raises:
        UnsupportedModel: no such family, or a variant that is not computed.
        WeightMismatch: a tensor is missing, left over, or of another shape.
    """
    word = str(config.get("model_type", ""))
    if word not in FAMILIES:
        served = ", ".join(sorted(FAMILIES))
        message = f"model of type {word!r} cannot be served"
        raise UnsupportedModel(message, hint=f"served are {served}", architecture=word)
    source = GgufSource(path) if path.suffix == ".gguf" else SafetensorsSource(path)
    return FAMILIES[word](config, Weights(source, dtype, device))
