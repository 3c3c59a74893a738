"""Llama 3: grouped queries, rotary embedding stretched piecewise."""

from support.families.text import text_family

_ROPE = (
    ("rope_type", "llama3"),
    ("rope_theta", 10000.0),
    ("factor", 8.0),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 64),
)

FAMILY = text_family("llama", rope_parameters=_ROPE)
