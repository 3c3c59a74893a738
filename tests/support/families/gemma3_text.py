"""Gemma 3: head norms, two rotary bases, the wider one stretched."""

from support.families.text import text_family

_FULL = (("rope_type", "linear"), ("rope_theta", 50000.0), ("factor", 4.0))
_SLIDING = (("rope_type", "default"), ("rope_theta", 1000.0))

FAMILY = text_family(
    "gemma3",
    "gemma3_text",
    seed=2,
    sliding_window=16,
    layer_types=("sliding_attention", "full_attention", "sliding_attention"),
    query_pre_attn_scalar=24,
    rope_parameters=(("full_attention", _FULL), ("sliding_attention", _SLIDING)),
)
