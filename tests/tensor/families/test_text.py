"""Text families through the engine against transformers."""

import functools
import importlib

import pytest
from support.proof import Proof, check_goldens

_NAMES = (
    "gemma",
    "gemma2",
    "gemma3_text",
    "llama",
    "mistral",
    "phi3",
    "phi4",
    "qwen2",
    "qwen3",
    "smollm3",
)


@functools.cache
def _proof(name: str) -> Proof:
    return Proof(importlib.import_module(f"support.families.{name}").FAMILY)


@pytest.mark.parametrize("name", _NAMES)
def test_it_answers_as_in_transformers(name: str) -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    _proof(name).check_everyhow()


@pytest.mark.parametrize("name", _NAMES)
def test_goldens(name: str) -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(_proof(name))
