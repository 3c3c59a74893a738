"""Weights of 8 and 4 bits through the engine: near full ones, the same in any company."""

from __future__ import annotations

import sys

import pytest
import torch
from support.checkpoints import tiny_llama
from support.families.llava import FAMILY as LLAVA
from support.proof import TEXT_CASES, Family, Proof

from mmserve.core import BadRequest, EngineConfig, MissingExtra
from mmserve.kernels import TorchOps

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

LLAMA = {"untied": {}, "tied": {"changes": (("tie_word_embeddings", True),)}}


def _proof(bits: str, case: str = "untied", kernels: str = "auto") -> Proof:
    """A tiny Llama in so many bits."""
    return Proof(
        Family(
            "llama",
            lambda: tiny_llama(**LLAMA[case]),
            TEXT_CASES,
            settings={"weights": bits, "kernels": kernels},
            num_tokens=16,
        )
    )


@pytest.mark.parametrize("case", LLAMA)
def test_int8_answers_nearly_as_full_weights(case: str) -> None:
    """The first log-probabilities are those of full weights within some hundredths."""
    first = []
    for bits in ("full", "int8"):
        proof = _proof(bits, case)
        with proof.engine() as engine:
            first.append([reading.tops[0] for reading in proof.read(engine, TEXT_CASES)])
    for full, few in zip(*first, strict=True):
        shared = full.keys() & few.keys()
        assert len(shared) >= 3
        assert 0 < max(abs(full[token] - few[token]) for token in shared) < 0.15


@pytest.mark.parametrize("kernels", ["auto", "torch"])
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_few_bits_answer_the_same_in_any_company(bits: str, kernels: str) -> None:
    """Together and alone, whole and in pieces, cold and warm: tokens are equal."""
    proof = _proof(bits, kernels=kernels)
    with proof.engine() as engine:
        together = proof.read(engine, TEXT_CASES)
        warm = proof.read(engine, TEXT_CASES)
    with proof.engine(chunk_tokens=7, max_step_tokens=23, radix_cache=False) as engine:
        alone = [proof.read(engine, [case])[0] for case in TEXT_CASES]
    for first, second, third in zip(together, warm, alone, strict=True):
        assert first.token_ids == second.token_ids == third.token_ids


def test_pictures_are_encoded_with_full_weights() -> None:
    """Few bits are for the decoder: the tower and the projector keep theirs."""
    proof = Proof(
        Family(
            "llava", LLAVA.make, LLAVA.cases[2:3], settings={"weights": "int8"}, num_tokens=4
        )
    )
    with proof.engine() as engine:
        (reading,) = proof.read(engine, proof.family.cases)
    assert len(reading.token_ids) == 4


def test_other_weights_are_refused() -> None:
    """A word that names no format is refused with those that do."""
    with pytest.raises(BadRequest, match="allowed is full, int8, int4"):
        EngineConfig(weights="int3")  # type: ignore[arg-type]


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where torch computes, the extra is named."""
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match="onnx") as caught:
        TorchOps().linear(torch.zeros(8, 32), bits=8)
    assert caught.value.hint == 'pip install "mmserve[quant]"'
