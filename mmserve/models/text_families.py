"""Text families as tables: what a sparse config.json means, and how each differs from Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["DEFAULTS", "DIFFERENCES", "SPELLINGS"]

_SEVEN_BILLION = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
_QWEN = {
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32768,
    "sliding_window": 4096,
    "max_window_layers": 28,
}
_GEMMA = {
    "vocab_size": 256000,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "hidden_act": "gelu_pytorch_tanh",
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
_GEMMA_2 = {
    **_GEMMA,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_pattern": 2,
    "final_logit_softcapping": 30.0,
    "attn_logit_softcapping": 50.0,
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _SEVEN_BILLION,
    "mistral": {
        **_SEVEN_BILLION,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
    },
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "qwen3_vl_text": {
        **_QWEN,
        "head_dim": 128,
        "max_position_embeddings": 128000,
        "rope_theta": 500000.0,
    },
    "gemma": _GEMMA,
    "gemma2": _GEMMA_2,
    "gemma3": {
        **_GEMMA_2,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window_pattern": 6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": None,
        "attn_logit_softcapping": None,
    },
    "phi3": {
        **_SEVEN_BILLION,
        "vocab_size": 32064,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
    },
    "smollm3": {
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 11008,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "rope_theta": 2000000.0,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    },
}
"""Fields of config.json that transformers assumes where a checkpoint is silent."""

SPELLINGS: Mapping[str, str] = {
    "gemma3_text": "gemma3",
    "qwen2_vl": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
"""Words that say the same arithmetic, most of them inside a vision family's text_config."""

DIFFERENCES: Mapping[str, Mapping[str, Any]] = {
    "qwen2": {"has_qkv_bias": True, "has_out_bias": False},
    "qwen3": {"has_qk_norm": True},
    "gemma": {"norm_offset": 1.0},
    "gemma2": {"norm_offset": 1.0, "has_output_norms": True},
    "gemma3": {"norm_offset": 1.0, "has_output_norms": True, "has_qk_norm": True},
}
"""Fields of DecoderConfig that follow from the family, not from config.json."""
