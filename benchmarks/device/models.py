"""Models of true shapes with random weights, once in transformers and once in mmserve.

Both have the same tensors, so the memory is taken once where ours lays nothing out anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor

from benchmarks.device.sizes import Setting
from mmserve.core import EngineConfig
from mmserve.kernels import Ops
from mmserve.models import Decoder, DecoderConfig, LlavaConfig, Model
from mmserve.models.families.llava import LlavaEyes
from mmserve.models.families.qwen_vl import text_config
from mmserve.models.weights import Weights, canonical_name
from mmserve.runner import TorchRunner
from mmserve.runner.feature_store import FeatureStore
from mmserve.runner.kv_store import KvStore, kv_bytes_per_token
from mmserve.runner.sizing import Needs, graphs_for

__all__ = ["Pair", "llava", "qwen_vl", "text"]

CONTEXT = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """A model of transformers and its twin.

    Args:
        theirs: of transformers, on the device.
        runner: ours.
        model: ours.
        weight_bytes: that a decode step reads.
        note: how its decode steps run.
    """

    theirs: Any
    runner: TorchRunner
    model: Model
    weight_bytes: int
    note: str


class _Tensors:
    """A `TensorSource` of tensors that are there already."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = {canonical_name(own): tensor for own, tensor in tensors.items()}
        self._names = {canonical_name(own): own for own in tensors}

    @property
    def names(self) -> Mapping[str, str]:
        """See `TensorSource`."""
        return self._names

    def read(self, name: str) -> Tensor:
        """See `TensorSource`."""
        return self._tensors[name]


class _QwenEyes:
    """See `PictureEncoder`: transformers' tower, items of one picture or clip each."""

    def __init__(self, visual: Any, setting: Setting) -> None:  # noqa: ANN401
        self._visual = visual
        self._setting = setting

    def encode(self, items: Sequence[Mapping[str, Any]]) -> list[Tensor]:
        """See `PictureEncoder.encode`."""
        device, dtype = self._setting.device, self._setting.dtype
        grids = torch.stack([torch.from_numpy(item["grid"]) for item in items])
        pixels = torch.cat([torch.from_numpy(item["pixel_values"]) for item in items])
        found = self._visual(pixels.to(device, dtype), grid_thw=grids.to(device))
        sizes = (grids.prod(-1) // self._visual.spatial_merge_size**2).tolist()
        return list(found.pooler_output.split(sizes))


def _built(kind: Any, config: Any, setting: Setting) -> Any:  # noqa: ANN401 - of transformers
    """A model of transformers with seeded random weights, made on the device."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with setting.device:
            return kind(config).eval()
    finally:
        torch.set_default_dtype(before)


def _pair(
    theirs: Any,  # noqa: ANN401
    setting: Setting,
    ops: Ops,
    model: Model,
    num_slots: int,
) -> Pair:
    shape, device = model.decoder.shape, setting.device
    store = KvStore(shape, num_slots, setting.dtype, device)
    per_token = kv_bytes_per_token(shape, setting.dtype)
    needs = Needs(EngineConfig(), CONTEXT, per_token, setting.dtype, device)
    graphs, note = graphs_for(needs, model, ops, store)
    features = FeatureStore(model.pictures, device)
    runner = TorchRunner(model, store, features, ops, device, graphs)
    read = sum(
        weights_of.numel() * weights_of.element_size()
        for name, weights_of in theirs.state_dict().items()
        if canonical_name(name).startswith(("text.layers", "lm_head"))
    )
    return Pair(theirs, runner, model, read, note or "decode steps run one by one")


def _weights(theirs: Any, setting: Setting, ops: Ops) -> Weights:  # noqa: ANN401
    return Weights(_Tensors(theirs.state_dict()), setting.dtype, setting.device, ops=ops)


def text(setting: Setting, ops: Ops, num_slots: int) -> Pair:
    """A Llama of 24 layers of 1,024, or a tiny one."""
    width, layers = (64, 2) if setting.is_tiny else (1024, 24)
    size = 16 if setting.is_tiny else 64
    config = transformers.LlamaConfig(
        **_llama(width, layers, size), num_key_value_heads=width // size // 2
    )
    theirs = _built(transformers.LlamaForCausalLM, config, setting)
    weights = _weights(theirs, setting, ops)
    decoder = Decoder(DecoderConfig.parse(config.to_dict()), weights)
    return _pair(theirs, setting, ops, Model("llama", decoder), num_slots)


def _llama(width: int, layers: int, size: int) -> dict[str, Any]:
    return {
        "vocab_size": 512 if width < 1024 else 32_064,
        "hidden_size": width,
        "intermediate_size": width * 11008 // 4096,
        "num_hidden_layers": layers,
        "num_attention_heads": width // size,
        "head_dim": size,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.02 if width >= 1024 else 0.12,
        "tie_word_embeddings": False,
    }


def llava(setting: Setting, ops: Ops, num_slots: int) -> Pair:
    """LLaVA-1.5-7B's shapes: CLIP of 24 layers at 336, 576 tokens a picture; or tiny ones."""
    tiny = setting.is_tiny
    width, layers, size = (64, 2, 16) if tiny else (4096, 32, 128)
    vision = transformers.CLIPVisionConfig(
        hidden_size=48 if tiny else 1024,
        intermediate_size=64 if tiny else 4096,
        num_hidden_layers=3 if tiny else 24,
        num_attention_heads=3 if tiny else 16,
        image_size=56 if tiny else 336,
        patch_size=14,
    )
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config=transformers.LlamaConfig(**_llama(width, layers, size)),
        image_token_index=3,
        vision_feature_layer=-2,
        image_seq_length=16 if tiny else 576,
    )
    theirs = _built(transformers.LlavaForConditionalGeneration, config, setting)
    ours, weights = LlavaConfig.parse(config.to_dict()), _weights(theirs, setting, ops)
    model = Model("llava", Decoder(ours.text, weights), LlavaEyes(ours, weights), 3)
    return _pair(theirs, setting, ops, model, num_slots)


def qwen_vl(setting: Setting, ops: Ops, num_slots: int) -> Pair:
    """Qwen2.5-VL-7B's shapes, or tiny ones; the tower is transformers' in both."""
    tiny = setting.is_tiny
    width, layers, heads = (64, 2, 4) if tiny else (3584, 28, 28)
    fields = {
        "vocab_size": 512 if tiny else 152_064,
        "hidden_size": width,
        "intermediate_size": 128 if tiny else 18_944,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2 if tiny else 4,
        "max_position_embeddings": 4 * CONTEXT,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "mrope_section": [2, 3, 3] if tiny else [16, 24, 24],
        },
    }
    vision = {
        "depth": 2 if tiny else 32,
        "hidden_size": 32 if tiny else 1280,
        "intermediate_size": 64 if tiny else 3420,
        "num_heads": 2 if tiny else 16,
        "out_hidden_size": width,
        "fullatt_block_indexes": [1] if tiny else [7, 15, 23, 31],
    }
    tokens = {"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 4}
    config = transformers.Qwen2_5_VLConfig(
        text_config=fields, vision_config=vision, tie_word_embeddings=False, **tokens
    )
    kind = transformers.Qwen2_5_VLForConditionalGeneration
    theirs = _built(kind, config, setting)
    weights = _weights(theirs, setting, ops)
    decoder = Decoder(DecoderConfig.parse(text_config("qwen2_5_vl", config.to_dict())), weights)
    model = Model("qwen2_5_vl", decoder, _QwenEyes(theirs.model.visual, setting), 5)
    return _pair(theirs, setting, ops, model, num_slots)
