"""Families by the word that config.json uses, and how each is built.

A family is one file here and one in `vision/families`; see docs/guides/add-a-family.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mmserve.models.checkpoint import Checkpoint
from mmserve.models.families import llava, text
from mmserve.models.ports import Model

__all__ = ["FAMILIES"]

FAMILIES: Mapping[str, Callable[[Checkpoint], Model]] = {
    "llama": text.build,
    "llava": llava.build,
    "mistral": text.build,
    "qwen2": text.build,
    "qwen3": text.build,
}
"""Builders by model type; a new family is a line here."""
