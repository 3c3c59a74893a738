"""Gemma 2: four norms a layer, bounded scores and logits, every second layer slides."""

from support.families.text import text_family

FAMILY = text_family(
    "gemma2",
    seed=1,
    sliding_window=16,
    query_pre_attn_scalar=24,
    attn_logit_softcapping=5.0,
    final_logit_softcapping=8.0,
)
