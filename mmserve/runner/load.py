"""From a directory to a runner and the facts that the planning wing needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mmserve.core import (
    BadRequest,
    EngineConfig,
    ModelInfo,
    ModelRefused,
    Runner,
    default_threads,
)
from mmserve.kernels import Ops, choose_ops
from mmserve.kernels.flashinfer import FlashInferAttention, unsupported
from mmserve.models import Checkpoint, Model, build_model, read_config
from mmserve.runner.feature_store import FeatureStore
from mmserve.runner.identity import eos_token_ids, fingerprint
from mmserve.runner.kv_store import KvStore, kv_bytes_per_token
from mmserve.runner.sizing import Needs, graphs_for, slots_for
from mmserve.runner.torch_runner import TorchRunner

__all__ = ["LoadedModel", "load_model"]

_DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}

_BITS = {"full": None, "int8": 8, "int4": 4}


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A runner, the facts of its model, and the configuration as config.json says it."""

    runner: Runner
    info: ModelInfo
    config: dict[str, Any]


def load_model(config: EngineConfig, directory: Path) -> LoadedModel:
    """Load a checkpoint directory or a .gguf file onto the device that `config` names.

    Changes: torch's number of threads. Raises NotFound, UnsupportedModel, WeightMismatch,
    MissingExtra, ModelRefused.
    """
    torch.set_num_threads(config.threads or default_threads())
    device = _device(config.device)
    raw = read_config(directory)
    dtype = _dtype(config.dtype, raw, device)
    with torch.inference_mode():
        bits, context = _BITS[config.weights], config.context_length
        chosen = choose_ops(config.kernels, device, dtype)
        model = build_model(
            Checkpoint(directory, raw, dtype, device, bits, chosen.ops, context)
        )
        info = _info(config, directory, raw, model, dtype)
        needs = Needs(config, info.context_length, info.kv_bytes_per_token, dtype, device)
        info = replace(info, num_slots=slots_for(needs, model, chosen.ops))
        store = KvStore(model.decoder.shape, info.num_slots, dtype, device)
        graphs, note = graphs_for(needs, model, chosen.ops, store)
    others = (_attention_note(chosen.ops, model, dtype), note)
    notes = (*chosen.notes, *(other for other in others if other))
    features = FeatureStore(model.pictures, device)
    runner = TorchRunner(model, store, features, chosen.ops, device, graphs)
    return LoadedModel(runner, replace(info, kernels=notes), raw)


def _info(
    config: EngineConfig,
    path: Path,
    raw: Mapping[str, Any],
    model: Model,
    dtype: torch.dtype,
) -> ModelInfo:
    """Facts of the model; how many slots there are is told later."""
    text = model.decoder.shape
    context = config.context_length or text.max_positions
    if context > text.max_positions:
        message = f"context_length is {context}, the model was made for {text.max_positions}"
        raise BadRequest(message, field="context_length", reason="range")
    inner = raw.get("text_config") or {}
    bos = raw.get("bos_token_id", inner.get("bos_token_id"))
    return ModelInfo(
        name=config.served_name or path.resolve().stem,
        family=model.family,
        path=str(path),
        context_length=context,
        vocab_size=text.vocab_size,
        eos_token_ids=_ends(path, raw, text.vocab_size),
        bos_token_id=bos if isinstance(bos, int) else None,
        image_token_id=model.image_token_id,
        num_slots=config.num_slots or 0,
        kv_bytes_per_token=kv_bytes_per_token(text, dtype),
        feature_bytes_per_token=text.hidden_size * (1 + text.num_deep) * dtype.itemsize,
        fingerprint=fingerprint(path, raw),
    )


def _attention_note(ops: Ops, model: Model, dtype: torch.dtype) -> str | None:
    """Why the chosen attention leaves every step of this model to another, if it does. Pure."""
    if not isinstance(ops.attention, FlashInferAttention):
        return None
    reason = unsupported(model.decoder.shape.head_size, dtype)
    return reason and f"flashinfer does not attend for this model: {reason}"


def _ends(path: Path, raw: Mapping[str, Any], vocab_size: int) -> tuple[int, ...]:
    """Tokens that end an answer, of those that the model has. Raises ModelRefused. Pure."""
    ends = tuple(one for one in eos_token_ids(path, raw) if 0 <= one < vocab_size)
    if not ends:
        raise ModelRefused(
            f"no file of {path} names a token that ends an answer",
            hint="write eos_token_id into generation_config.json",
            path=str(path),
        )
    return ends


def _device(name: str) -> torch.device:
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    if name == "cpu" or (has_cuda and name.partition(":")[0] == "cuda"):
        return torch.device(name)
    usable = "auto, cpu, cuda" if has_cuda else "auto and cpu"
    message = f"device is {name!r}, usable here are {usable}"
    raise BadRequest(message, field="device", reason="unknown")


def _dtype(name: str, raw: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """float32 on a CPU, else what the checkpoint was saved in, unless the settings name one."""
    if name in _DTYPES:
        return _DTYPES[name]
    if name != "auto":
        message = f"dtype is {name!r}, known are auto, {', '.join(_DTYPES)}"
        raise BadRequest(message, field="dtype", reason="unknown")
    if device.type == "cpu":
        return torch.float32
    inner = raw.get("text_config") or {}
    named = (part.get(key) for part in (raw, inner) for key in ("dtype", "torch_dtype"))
    saved = next((str(one) for one in named if one), "")
    return _DTYPES.get(saved.removeprefix("torch."), torch.bfloat16)
