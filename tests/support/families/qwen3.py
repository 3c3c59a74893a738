"""Qwen 3: head norms, rotary embedding stretched by a ramp over the pairs (YaRN)."""

from support.families.text import text_family

_ROPE = (
    ("rope_type", "yarn"),
    ("rope_theta", 10000.0),
    ("factor", 4.0),
    ("original_max_position_embeddings", 128),
)

FAMILY = text_family("qwen3", seed=13, rope_parameters=_ROPE)
