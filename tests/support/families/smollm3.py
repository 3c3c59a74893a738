"""SmolLM3: every second layer has no rotary embedding."""

from support.families.text import text_family

FAMILY = text_family("smollm3", seed=2, no_rope_layer_interval=2, tie_word_embeddings=True)
