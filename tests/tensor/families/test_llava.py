"""LLaVA-1.5 through the engine against transformers."""

from support.families.llava import FAMILY
from support.proof import Proof, check_goldens

PROOF = Proof(FAMILY)


def test_llava_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_llava_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)
