"""GGUF files: configuration and dequantised tensors.

The only place that imports the optional package `gguf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmserve.core import MissingExtra
from mmserve.models.config import refuse

__all__ = ["GgufSource"]

_EXTRA = "smollm2"
_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_FUSED = {**_PARTS, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}
_FOUR_NORMS = {
    **_PARTS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOPS = {
    "token_embd.weight": "text.embed_tokens.weight",
    "output_norm.weight": "text.norm.weight",
    "output.weight": "lm_head.weight",
}
_ROPE_TENSORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
_OPTIONAL = {
    "head_dim": "attention.key_length",
    "num_key_value_heads": "attention.head_count_kv",
    "rope_theta": "rope.freq_base",
    "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
}
"""Field of config.json: field of the file, behind its architecture's word."""


@dataclass(frozen=True, slots=True)
class _Architecture:
    """How files of one architecture differ.

    Args:
        family: the word that config.json would use.
        parts: a layer's tensors: the file's word, and ours.
        is_interleaved: whether the partners of a rotary pair are neighbours.
        norm_offset: what the file's gains are above a checkpoint's.
        num_wide_layers: layers of the one size whose queries are scaled by width over heads,
            which no field says.
    """

    family: str
    parts: Mapping[str, str] = field(default_factory=lambda: _PARTS)
    is_interleaved: bool = False
    norm_offset: float = 0.0
    num_wide_layers: int | None = None


_ARCHITECTURES = {
    "llama": _Architecture("llama", is_interleaved=True),
    "qwen2": _Architecture("qwen2"),
    "qwen3": _Architecture("qwen3"),
    "phi3": _Architecture("phi3", _FUSED),
    "gemma2": _Architecture("gemma2", _FOUR_NORMS, norm_offset=1.0, num_wide_layers=46),
    "gemma3": _Architecture("gemma3_text", _FOUR_NORMS, norm_offset=1.0, num_wide_layers=62),
}


class GgufSource:
    """Tensors of one GGUF file by canonical name, dequantised to float32; see `TensorSource`.

    Args:
        path: the file.

    Raises UnsupportedModel for another architecture, MissingExtra without the package.
    """

    def __init__(self, path: Path) -> None:
        self._gguf = _import_gguf()
        self._reader = self._gguf.GGUFReader(path)
        self._word = str(self._field("general.architecture", ""))
        if self._word not in _ARCHITECTURES:
            served = ", ".join(_ARCHITECTURES)
            refuse(self._word, f"architectures of GGUF files served are {served}")
        self._architecture = _ARCHITECTURES[self._word]
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        known = {own: _canonical(own, self._architecture.parts) for own in self._tensors}
        self._names = {name: own for own, name in known.items() if name is not None}

    @property
    def names(self) -> Mapping[str, str]:
        """See `TensorSource`."""
        return self._names

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as a config.json would say it. Pure."""
        config = {
            "model_type": self._architecture.family,
            "vocab_size": len(self._reader.get_field("tokenizer.ggml.tokens").data),
            "hidden_size": int(self._own("embedding_length")),
            "intermediate_size": int(self._own("feed_forward_length")),
            "num_hidden_layers": int(self._own("block_count")),
            "num_attention_heads": int(self._own("attention.head_count")),
            "num_key_value_heads": int(self._own("attention.head_count")),
            "head_dim": int(self._own("embedding_length") // self._own("attention.head_count")),
            "max_position_embeddings": int(self._own("context_length")),
            "rms_norm_eps": float(self._own("attention.layer_norm_rms_epsilon")),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "bos_token_id": self._field("tokenizer.ggml.bos_token_id"),
            "eos_token_id": self._ends(),
        }
        for name, own in _OPTIONAL.items():
            value = self._own(own)
            if value is not None:
                config[name] = value
        config["rope_scaling"] = self._rope(config["head_dim"])
        return config | self._scale(config) | self._layer_kinds()

    def read(self, name: str) -> Tensor:
        """See `TensorSource`."""
        values = self._values(self._names[name])
        if self._architecture.is_interleaved and name.endswith(_TURNED):
            num_heads = self._own("attention.head_count")
            if name.endswith("k_proj.weight"):
                num_heads = self._own("attention.head_count_kv") or num_heads
            values = _unpermuted(values, int(num_heads))
        if name.endswith("norm.weight"):
            values = values - np.float32(self._architecture.norm_offset)
        return torch.from_numpy(values)

    def _values(self, own: str) -> np.ndarray[Any, Any]:
        tensor = self._tensors[own]
        values = self._gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        return np.require(values, np.float32, ["C", "W"])  # some are the file itself

    def _field(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as the file says
        entry = self._reader.get_field(key)
        return default if entry is None else entry.contents()

    def _own(self, key: str) -> Any:  # noqa: ANN401 - as the file says
        return self._field(f"{self._word}.{key}")

    def _ends(self) -> list[int]:
        """Tokens that end a text or a turn."""
        words = ("eos", "eot")
        found = [self._field(f"tokenizer.ggml.{word}_token_id") for word in words]
        return [int(token) for token in found if token is not None]

    def _rope(self, head_size: int) -> dict[str, Any]:
        """Rotary parameters beside the base; tensors of frequencies stretch each pair."""
        kind = self._own("rope.scaling.type")
        turned = self._own("rope.dimension_count") or head_size
        spec: dict[str, Any] = {
            "rope_type": "default" if kind in (None, "none") else kind,
            "factor": self._own("rope.scaling.factor"),
            "beta_fast": self._own("rope.scaling.yarn_beta_fast"),
            "beta_slow": self._own("rope.scaling.yarn_beta_slow"),
            "partial_rotary_factor": turned / head_size,
        }
        both, short, long = _ROPE_TENSORS
        if both in self._tensors:
            factors = self._values(both).tolist()
            spec |= {"rope_type": "longrope", "attention_factor": 1.0}
            return spec | {"short_factor": factors, "long_factor": factors}
        if long in self._tensors:
            spec |= {"rope_type": "longrope", "long_factor": self._values(long).tolist()}
            spec["short_factor"] = self._values(short).tolist()
            spec["attention_factor"] = self._own("rope.scaling.attn_factor")
        return spec

    def _scale(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The scale of Gemma's queries, which llama.cpp derives from the model's size."""
        wide = self._architecture.num_wide_layers
        if wide is None:
            return {}
        is_wide = config["num_hidden_layers"] == wide
        scalar = config["hidden_size"] / config["num_attention_heads"]
        return {"query_pre_attn_scalar": scalar if is_wide else config["head_dim"]}

    def _layer_kinds(self) -> dict[str, Any]:
        """Which layers slide, where the file says so: a period, or a flag a layer."""
        pattern = self._own("attention.sliding_window_pattern")
        if pattern is None:
            return {}
        if isinstance(pattern, int):
            return {"sliding_window_pattern": pattern}
        return {"layer_types": [_KINDS[bool(is_sliding)] for is_sliding in pattern]}


_TURNED = ("q_proj.weight", "k_proj.weight")
_KINDS = ("full_attention", "sliding_attention")


def _unpermuted(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Put each head's halves side by side; the file interleaves rotary pairs. Pure."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _canonical(own: str, parts: Mapping[str, str]) -> str | None:
    """Our name of a tensor, its own if it is strange, None if it is no weight."""
    if own in _TOPS:
        return _TOPS[own]
    head, _, rest = own.partition(".")
    number, _, part = rest.partition(".")
    stem, _, kind = part.rpartition(".")
    if head != "blk" or stem not in parts:
        return None if own in _ROPE_TENSORS else own
    return f"text.layers.{number}.{parts[stem]}.{kind}"


def _import_gguf() -> ModuleType:
    try:
        import gguf  # noqa: PLC0415 - optional package
    except ImportError as error:
        raise MissingExtra(
            "GGUF files need the package 'gguf', which is not installed",
            hint=f'pip install "mmserve[{_EXTRA}]"',
            package="gguf",
            extra=_EXTRA,
        ) from error
    return gguf
