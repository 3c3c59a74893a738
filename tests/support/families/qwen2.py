"""Qwen 2: biases of queries, keys and values, layers that slide from the second on."""

from support.families.text import text_family

FAMILY = text_family(
    "qwen2", seed=8, use_sliding_window=True, sliding_window=16, max_window_layers=1
)
