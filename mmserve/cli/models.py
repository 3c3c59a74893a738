"""`mmserve models`: what can be served, and what proves it."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.cli import console
from mmserve.cli.console import Column

__all__ = ["FAMILIES", "Family", "models"]

_COLUMNS = (Column("family"), Column("asks about"), Column("proved by"))


@dataclass(frozen=True, slots=True)
class Family:
    """A family by the word of config.json, and the test that compares it with transformers."""

    name: str
    subject: str
    check: str


_TEXT_CHECK = "tests/tensor/models/test_text_families.py"
FAMILIES = (
    Family("llama", "text", _TEXT_CHECK),
    Family("llava", "text, pictures, clips", "tests/tensor/models/test_llava.py"),
    Family("mistral", "text", _TEXT_CHECK),
    Family("qwen2", "text", _TEXT_CHECK),
    Family("qwen3", "text", _TEXT_CHECK),
)
"""Kept equal to the registry of families by a test, because reading that one loads torch."""


def models() -> None:
    """List the families that can be served, with the check that proved each."""
    console.say_table(_COLUMNS, [(f.name, f.subject, f.check) for f in FAMILIES])
    console.say()
    console.say(
        "Each check compares logits and greedy tokens with transformers on a small model."
    )
    console.say("Embedded: tabletop (llava); with the extra smollm2: smollm2-135m (llama).")
