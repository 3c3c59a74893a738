"""Gemma: norms stored as offsets, scaled embeddings, gated gelu."""

from support.families.text import text_family

FAMILY = text_family("gemma", seed=1)
