"""Text families through transformers' modules, against transformers."""

from __future__ import annotations

import functools

import pytest
from support.families.hosted_text import FAMILIES
from support.proof import Proof, check_goldens

from mmserve.cli.models import HOSTED
from mmserve.models import FAMILIES as LEAN

_BY_NAME = {family.name: family for family in FAMILIES}


@functools.cache
def _proof(name: str) -> Proof:
    return Proof(_BY_NAME[name])


def test_no_family_here_has_a_file_of_its_own() -> None:
    """What is proved here goes through transformers' modules; the list of models says so."""
    assert not set(_BY_NAME) & set(LEAN)
    assert set(_BY_NAME) <= set(HOSTED)


@pytest.mark.parametrize("name", _BY_NAME)
def test_hosted_text_answers_as_in_transformers(name: str) -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    _proof(name).check_everyhow()


@pytest.mark.parametrize("name", _BY_NAME)
def test_hosted_text_goldens(name: str) -> None:
    """What transformers says of each small checkpoint is written down, to be read."""
    check_goldens(_proof(name))
