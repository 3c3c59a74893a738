"""Mistral: every layer slides."""

from support.families.text import text_family

FAMILY = text_family("mistral", sliding_window=16)
