"""`mmserve models`: what can be served, and what proves it."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from mmserve.cli import console
from mmserve.cli.console import Column

__all__ = ["FAMILIES", "HOSTED", "Family", "models"]

_COLUMNS = (Column("family"), Column("asks about"), Column("proved by"))


@dataclass(frozen=True, slots=True)
class Family:
    """A family by the word of config.json, and the test that compares it with transformers."""

    name: str
    subject: str
    check: str


_FOLDER = "tests/tensor/"
_TEXT_CHECK = "tests/tensor/families/test_text.py"
_QWEN_CHECK = "tests/tensor/families/test_qwen_vl.py"
FAMILIES = (
    Family("gemma", "text", _TEXT_CHECK),
    Family("gemma2", "text", _TEXT_CHECK),
    Family("gemma3", "text, pictures, frames", "tests/tensor/families/test_gemma3.py"),
    Family("gemma3_text", "text", _TEXT_CHECK),
    Family("idefics3", "text, pictures, frames", "tests/tensor/families/test_idefics3.py"),
    Family("internvl", "text, pictures, clips", "tests/tensor/families/test_internvl.py"),
    Family("llama", "text", _TEXT_CHECK),
    Family("llava", "text, pictures, frames", "tests/tensor/models/test_llava.py"),
    Family("llava_next", "text, pictures, frames", "tests/tensor/families/test_llava_next.py"),
    Family(
        "llava_next_video", "text, pictures, clips", "tests/tensor/families/test_llava_next.py"
    ),
    Family(
        "llava_onevision",
        "text, pictures, clips",
        "tests/tensor/families/test_llava_onevision.py",
    ),
    Family("mistral", "text", _TEXT_CHECK),
    Family("mistral3", "text, pictures, frames", "tests/tensor/families/test_mistral3.py"),
    Family("phi3", "text", _TEXT_CHECK),
    Family("qwen2", "text", _TEXT_CHECK),
    Family("qwen2_5_vl", "text, pictures, clips", _QWEN_CHECK),
    Family("qwen2_vl", "text, pictures, clips", _QWEN_CHECK),
    Family("qwen3", "text", _TEXT_CHECK),
    Family("qwen3_vl", "text, pictures, clips", _QWEN_CHECK),
    Family("smollm3", "text", _TEXT_CHECK),
    Family("smolvlm", "text, pictures, clips", "tests/tensor/families/test_smolvlm.py"),
    Family("vipllava", "text, pictures, frames", "tests/tensor/families/test_llava_next.py"),
)
"""Kept equal to the registry of families by a test, because reading that one loads torch."""

HOSTED = (
    "aya_vision",
    "cohere2",
    "cohere2_vision",
    "deepseek_v3",
    "deepseek_vl",
    "glm4",
    "got_ocr2",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "granite",
    "mixtral",
    "olmo2",
    "opt",
    "qwen2_moe",
    "starcoder2",
)
"""Types proved through transformers' modules, in tests/tensor/families/test_hosted_*.py."""


def models() -> None:
    """List the families that can be served, with the check that proved each."""
    rows = [(f.name, f.subject, f.check.removeprefix(_FOLDER)) for f in FAMILIES]
    console.say_table(_COLUMNS, rows)
    for paragraph in (
        f"Checks lie in {_FOLDER} and compare prompts, log-probabilities and greedy tokens "
        "with transformers on a small model.",
        "Everything else goes through transformers' own modules, or is refused at load with "
        f"the reason. Proved so, in families/test_hosted_*.py: {', '.join(HOSTED)}.",
        "Embedded: tabletop (llava); with the extra smollm2: smollm2-135m (llama).",
    ):
        console.say()
        console.say(textwrap.fill(paragraph, 80))
