"""Text families without a file of their own, served through transformers' modules."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from support.checkpoints import SPECIAL_TOKENS, _root, _save, _vocab_size, tiny_tokenizer
from support.proof import TEXT_CASES, Case, Family

__all__ = ["FAMILIES", "LONG_CASE", "REFUSED", "tiny_hosted"]

_USUAL: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.12,
    "tie_word_embeddings": False,
}
_EXPERTS: Mapping[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}
_SERVED: Mapping[str, Mapping[str, Any]] = {
    "cohere2": {
        "head_dim": 16,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "logit_scale": 0.7,
    },
    "deepseek_v3": {
        **_EXPERTS,
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "glm4": {"head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "gpt_bigcode": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "gpt_neox": {"use_parallel_residual": True},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
        "logits_scaling": 0.6,
    },
    "mixtral": {"head_dim": 16, "num_local_experts": 4, "sliding_window": None},
    "olmo2": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 48, "dropout": 0.0},
    "qwen2_moe": {
        **_EXPERTS,
        "num_experts": 4,
        "shared_expert_intermediate_size": 48,
        "use_sliding_window": False,
    },
    "starcoder2": {"sliding_window": 16, "use_bias": True},
}
REFUSED: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "layer_types": None},
    "mamba": {"state_size": 8},
    "stablelm": {},
    "t5": {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
}
"""Families that cannot be served, with a tiny configuration of each."""


@functools.cache
def tiny_hosted(family: str, seed: int = 0, changes: tuple[tuple[str, Any], ...] = ()) -> Path:
    """A text model of a family named here, with the usual tokenizer."""
    torch.manual_seed(seed)
    fields = {**_USUAL, **{**_SERVED, **REFUSED}[family], **dict(changes)}
    config = transformers.AutoConfig.for_model(
        family,
        vocab_size=_vocab_size(),
        bos_token_id=SPECIAL_TOKENS.index("<s>"),
        eos_token_id=SPECIAL_TOKENS.index("<|end|>"),
        pad_token_id=SPECIAL_TOKENS.index("<pad>"),
        **fields,
    )
    auto: Any = transformers.AutoModelForCausalLM
    if config.is_encoder_decoder:
        auto = transformers.AutoModelForSeq2SeqLM
    model = auto.from_config(config)
    directory = Path(tempfile.mkdtemp(prefix=f"tiny-{family}-", dir=_root()))
    _save(model, directory)
    tiny_tokenizer().save_pretrained(directory)
    return directory


LONG_CASE = Case("long", (("user", ("The table has red and blue cubes, and a ball. " * 3,)),))
"""Longer than the sliding windows here."""
_SEEDS = {"cohere2": 4, "gpt_neox": 3, "mixtral": 1, "opt": 3, "starcoder2": 1}
FAMILIES = tuple(
    Family(
        family,
        functools.partial(tiny_hosted, family, _SEEDS.get(family, 0)),
        (*TEXT_CASES, LONG_CASE),
        auto=transformers.AutoModelForCausalLM,
    )
    for family in _SERVED
)
