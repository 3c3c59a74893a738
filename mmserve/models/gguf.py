"""Llama-architecture GGUF files: configuration and dequantised tensors.

The only place that imports the optional package `gguf`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOPS = {
    "token_embd.weight": "text.embed_tokens.weight",
    "output_norm.weight": "text.norm.weight",
    "output.weight": "lm_head.weight",
}


class GgufSource:
    """Tensors of one GGUF file by canonical name, dequantised to float32; see `TensorSource`.

    Args:
        path: the file; its architecture must be `llama`.
    """

    def __init__(self, path: Path) -> None:
        self._gguf = _import_gguf()
        self._reader = self._gguf.GGUFReader(path)
        architecture = self._field("general.architecture", "")
        if architecture != "llama":
            refuse(str(architecture), "of GGUF files only the llama architecture is served")
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        known = {own: _canonical(own) for own in self._tensors}
        self._names = {name: own for own, name in known.items() if name is not None}

    @property
    def names(self) -> Mapping[str, str]:
        """See `TensorSource`."""
        return self._names

    @property
    def config(self) -> dict[str, Any]:
        """The configuration as a config.json of model type `llama` would say it. Pure."""
        heads = int(self._field("llama.attention.head_count"))
        width = int(self._field("llama.embedding_length"))
        eos = self._field("tokenizer.ggml.eos_token_id")
        bos = self._field("tokenizer.ggml.bos_token_id")
        return {
            "model_type": "llama",
            "vocab_size": len(self._reader.get_field("tokenizer.ggml.tokens").data),
            "hidden_size": width,
            "intermediate_size": int(self._field("llama.feed_forward_length")),
            "num_hidden_layers": int(self._field("llama.block_count")),
            "num_attention_heads": heads,
            "num_key_value_heads": int(self._field("llama.attention.head_count_kv", heads)),
            "head_dim": int(self._field("llama.attention.key_length", width // heads)),
            "max_position_embeddings": int(self._field("llama.context_length")),
            "rms_norm_eps": float(self._field("llama.attention.layer_norm_rms_epsilon")),
            "rope_theta": float(self._field("llama.rope.freq_base", 10000.0)),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "eos_token_id": None if eos is None else int(eos),
            "bos_token_id": None if bos is None else int(bos),
        }

    def read(self, name: str) -> Tensor:
        """See `TensorSource`."""
        tensor = self._tensors[self._names[name]]
        values = self._gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = np.require(values, np.float32, ["C", "W"])  # some are the file itself
        if name.endswith("q_proj.weight"):
            values = _unpermuted(values, int(self._field("llama.attention.head_count")))
        elif name.endswith("k_proj.weight"):
            values = _unpermuted(values, int(self._field("llama.attention.head_count_kv")))
        return torch.from_numpy(values)

    def _field(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - as the file says
        field = self._reader.get_field(key)
        return default if field is None else field.contents()


def _unpermuted(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Put each head's halves side by side; the file interleaves rotary pairs. Pure."""
    rows, columns = weight.shape
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def _canonical(own: str) -> str | None:
    if own in _TOPS:
        return _TOPS[own]
    head, _, rest = own.partition(".")
    number, _, part = rest.partition(".")
    stem, _, kind = part.rpartition(".")
    if head != "blk" or stem not in _PARTS:
        return None if own == "rope_freqs.weight" else own
    return f"text.layers.{number}.{_PARTS[stem]}.{kind}"


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
