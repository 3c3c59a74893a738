"""Phi-3: fused tensors, a window, short factors while contexts are short."""

from support.families.text import text_family

_ROPE = (
    ("rope_type", "longrope"),
    ("rope_theta", 10000.0),
    ("short_factor", (1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5)),
    ("long_factor", (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)),
)

FAMILY = text_family(
    "phi3",
    seed=5,
    settings={"context_length": 256},
    sliding_window=100,
    original_max_position_embeddings=256,
    rope_parameters=_ROPE,
)
