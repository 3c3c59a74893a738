"""Any model that transformers can build: its modules with our attention, or the reason why not.

    config.json -> can it be? -> load -> probe layers -> check against itself -> Model

What a checkpoint holds beyond what its class has is left aside, as transformers does. Code that
comes with a checkpoint is never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmserve.core import MmserveError, WeightMismatch
from mmserve.models.checkpoint import Checkpoint
from mmserve.models.config import refuse
from mmserve.models.hosted.check import check_pictures, check_text
from mmserve.models.hosted.eyes import Features, Foreign, HostedEyes, quiet_loading
from mmserve.models.hosted.features import features_alone, features_together
from mmserve.models.hosted.language import HostedDecoder
from mmserve.models.ports import Model
from mmserve.models.shards import weight_files

__all__ = ["build_hosted", "is_hosted"]

_CHANGING_ROPES = ("longrope",)
_COMPUTED_LAYERS = ("full_attention", "sliding_attention")
_CHECKED_SIZE = (56, 84)
"""Height and width in pixels of the picture that a model is checked with."""
_TOGETHER_TOLERANCE = 1e-3


def is_hosted(family: str) -> bool:
    """Whether transformers knows models of this type; they may be refused yet. Pure."""
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - heavy

    return family in CONFIG_MAPPING


def build_hosted(checkpoint: Checkpoint) -> Model:
    """The model through transformers' modules.

    Raises:
        UnsupportedModel: it cannot be served, with the reason.
        WeightMismatch: a tensor is missing or has another shape.
        ModelRefused: the directory lacks weights.
    """
    weight_files(checkpoint.path)
    try:
        with quiet_loading():
            return _build(checkpoint)
    except MmserveError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a class of transformers raises
        words = " ".join(str(error).split()).rstrip(".")
        is_told = isinstance(error, (ValueError, ImportError))
        refuse(checkpoint.family, words if is_told else f"{type(error).__name__}: {words}")


def _build(checkpoint: Checkpoint) -> Model:
    from transformers import AutoConfig  # noqa: PLC0415 - heavy

    if checkpoint.bits is not None:
        raise ValueError(f"{checkpoint.bits}-bit weights are for families with a lean decoder")
    config = AutoConfig.from_pretrained(checkpoint.path, trust_remote_code=False)
    _check_config(config)
    model = _load(checkpoint, config)
    _check_class(model)
    decoder = HostedDecoder(model)
    check_text(model, decoder)
    if not _sees(checkpoint.family):
        return Model(checkpoint.family, decoder)
    image_token_id = _image_token_id(config)
    both = [_checked_inputs(checkpoint, seed) for seed in (0, 1)]
    features = _features_of(model, both)
    alone = features_alone(model, both[:1])[0]
    check_pictures(model, decoder, both[0], alone, image_token_id)
    eyes = HostedEyes(checkpoint, features, model)
    return Model(checkpoint.family, decoder, eyes, image_token_id)


def _check_config(config: Foreign) -> None:
    """Raise ValueError for what no attention function can change."""
    text = config.get_text_config()
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError("it has an encoder beside its decoder")
    family = config.model_type
    if not _sees(family) and family not in _mapping("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"):
        raise ValueError("transformers has no class of it that continues texts")
    if getattr(config, "quantization_config", None):
        raise ValueError("its weights are quantized (quantization_config)")
    crossing = ("cross_attention_layers", "cross_layer_interval", "add_cross_attention")
    if any(getattr(text, name, None) or getattr(config, name, None) for name in crossing):
        raise ValueError("it reads pictures through cross-attention, not as tokens")
    for kind in getattr(text, "layer_types", None) or ():
        if kind not in _COMPUTED_LAYERS:
            usual = " and ".join(_COMPUTED_LAYERS)
            raise ValueError(f"layers of type {kind!r} are not computed, only {usual}")
    ropes = getattr(text, "rope_parameters", None) or {}
    for rope in [ropes, *(part for part in ropes.values() if isinstance(part, Mapping))]:
        if rope.get("rope_type") in _CHANGING_ROPES:
            kind = rope["rope_type"]
            raise ValueError(f"rope type {kind!r} changes keys that are kept as texts grow")


def _check_class(model: Foreign) -> None:
    """Raise ValueError for classes that are more than layers over one line of tokens."""
    if getattr(model, "_is_stateful", False):
        raise ValueError("its layers keep a state that is not keys and values")
    for owner in (model, model.base_model):
        if hasattr(owner, "get_rope_index"):
            raise ValueError("its positions count time, rows and columns")


def _load(checkpoint: Checkpoint, config: Foreign) -> Foreign:
    from transformers import (  # noqa: PLC0415 - heavy
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    auto: Foreign = AutoModelForCausalLM
    if _sees(checkpoint.family):
        auto = AutoModelForImageTextToText
    model, report = auto.from_pretrained(
        checkpoint.path,
        config=config,
        dtype=checkpoint.dtype,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    for name in sorted(report["missing_keys"]):
        message = f"tensor {name!r} is missing"
        raise WeightMismatch(message, name=name, want=None, got=None)
    for name, *shapes in sorted(report["mismatched_keys"]):
        got, want = (tuple(shape) for shape in shapes)
        message = f"tensor {name!r} has shape {got}, the configuration asks for {want}"
        raise WeightMismatch(message, name=name, want=want, got=got)
    return model.to(checkpoint.device).eval()


def _image_token_id(config: Foreign) -> int:
    for name in ("image_token_id", "image_token_index"):
        value = getattr(config, name, None)
        if isinstance(value, int):
            return value
    raise ValueError("its configuration names no image_token_id")


def _checked_inputs(checkpoint: Checkpoint, seed: int) -> dict[str, Tensor]:
    """A prompt of one picture of random colours, as the checkpoint's processor makes it."""
    from transformers import AutoProcessor  # noqa: PLC0415 - heavy

    auto: Foreign = AutoProcessor
    processor = auto.from_pretrained(checkpoint.path, backend="pil", trust_remote_code=False)
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, (*_CHECKED_SIZE, 3), dtype=np.uint8)
    made = processor(images=[pixels], text=[processor.image_token], return_tensors="pt")
    return {name: _placed(value, checkpoint) for name, value in made.items()}


def _placed(value: Tensor, checkpoint: Checkpoint) -> Tensor:
    value = value.to(checkpoint.device)
    return value.to(checkpoint.dtype) if value.is_floating_point() else value


def _features_of(model: Foreign, items: list[dict[str, Tensor]]) -> Features:
    """In one batch if that gives the same of two pictures, else one after the other."""
    pictures = [{k: v for k, v in item.items() if k != "input_ids"} for item in items]
    alone = torch.cat(features_alone(model, pictures))
    try:
        together = torch.cat(features_together(model, pictures))
        is_same = torch.allclose(alone, together, _TOGETHER_TOLERANCE, _TOGETHER_TOLERANCE)
    except Exception:  # noqa: BLE001 - whatever a class of transformers raises
        is_same = False
    return features_together if is_same else features_alone


def _sees(family: str) -> bool:
    return family in _mapping("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES")


def _mapping(name: str) -> Mapping[str, Any]:
    """A table of transformers: classes by model type. Pure."""
    from transformers.models.auto import modeling_auto  # noqa: PLC0415 - heavy

    table: Mapping[str, Any] = getattr(modeling_auto, name)
    return table
