"""Phi-4-mini: three quarters of each head turn, long factors throughout."""

from support.families.text import text_family

_ROPE = (
    ("rope_type", "longrope"),
    ("rope_theta", 10000.0),
    ("partial_rotary_factor", 0.75),
    ("short_factor", (1.0, 1.1, 1.2, 1.3, 1.5, 1.7)),
    ("long_factor", (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)),
)

FAMILY = text_family(
    "phi3",
    "phi4",
    original_max_position_embeddings=16,
    rope_parameters=_ROPE,
    tie_word_embeddings=True,
)
