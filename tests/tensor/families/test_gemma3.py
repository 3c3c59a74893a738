"""Gemma 3: the proof, sizes and pixels as in transformers, and pictures as atomic spans."""

from support.families.gemma3 import FAMILY
from support.proof import Proof, check_goldens

PROOF = Proof(FAMILY)


def test_gemma3_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_gemma3_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)
