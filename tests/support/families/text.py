"""Text families on tiny seeded checkpoints; a file beside this one for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers

from support.checkpoints import tiny_llama
from support.proof import TEXT_CASES, Family

__all__ = ["text_family"]


def text_family(
    family: str,
    name: str | None = None,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Family:
    """`family` with fields of its configuration changed; `name` is that of its goldens."""
    fields = tuple(changes.items())
    return Family(
        name or family,
        lambda: tiny_llama(family, seed=seed, changes=fields),
        TEXT_CASES,
        settings=settings or {},
        auto=transformers.AutoModelForCausalLM,
    )
