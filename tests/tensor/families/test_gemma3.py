"""Gemma 3: the proof, sizes and pixels as in transformers, and pictures as atomic spans.

Pictures of 16 tokens see themselves both ways, in layers of whole sight and of windows of 8.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support.families.gemma3 import FAMILY, NUM_TOKENS, SHARED, tiny_gemma3
from support.families.pixtral import processor_of, random_sizes, variant
from support.proof import Case, Proof, check_goldens, picture, plain_inputs

from mmserve.core import BadRequest, ModelRefused, Request, UnsupportedModel
from mmserve.engine import Answer, collect
from mmserve.models import build_model, read_config
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds

PROOF = Proof(FAMILY)
QUESTIONS = Proof(SHARED)


def test_gemma3_answers_as_in_transformers() -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    PROOF.check_everyhow()


def test_gemma3_goldens() -> None:
    """What transformers says of the small checkpoint is written down, to be read."""
    check_goldens(PROOF)


def test_gemma3_with_windows_wider_than_pictures() -> None:
    """Real checkpoints have windows that no picture fills; they too are as in transformers."""
    proof = Proof(replace(FAMILY, make=lambda: tiny_gemma3(window=24)))
    proof.check_everyhow()


def test_pictures_longer_than_a_step() -> None:
    """A picture of 16 tokens is computed whole where steps have 12 and chunks 5."""
    with PROOF.engine(max_step_tokens=12, chunk_tokens=5) as engine:
        PROOF.check(PROOF.read(engine, FAMILY.cases))
        PROOF.check(PROOF.read(engine, FAMILY.cases))


@pytest.mark.parametrize("page_tokens", [8, 16])
def test_pages_that_end_inside_of_pictures(page_tokens: int) -> None:
    """What is kept in whole pages is used only up to a picture that it cuts.

    The questions part behind the second picture, in a page that begins in it; with pages of 16
    the page before begins in the first one.
    """
    with QUESTIONS.engine(page_tokens=page_tokens) as engine:
        QUESTIONS.check([QUESTIONS.read(engine, [case])[0] for case in SHARED.cases])
    with PROOF.engine(page_tokens=page_tokens) as engine:
        PROOF.check(PROOF.read(engine, FAMILY.cases))
        PROOF.check(PROOF.read(engine, FAMILY.cases))


def test_answers_that_are_interrupted() -> None:
    """Sequences that lose their KV and come back answer as if they had kept it."""
    proof = Proof(replace(SHARED, settings={"num_slots": 160}))
    with proof.engine() as engine:
        proof.check(proof.read(engine, SHARED.cases))
        assert engine.counters()["retractions_total"] > 0


def test_questions_about_pictures_share_them() -> None:
    """Three at once encode each picture once and compute what they have in common once."""
    with QUESTIONS.engine() as engine:
        QUESTIONS.check(QUESTIONS.read(engine, SHARED.cases))
        counters = engine.counters()
    prompts = [reading.prompt_ids for reading in QUESTIONS.expected.values()]
    different = {prompt[: i + 1] for prompt in prompts for i in range(len(prompt))}
    assert counters["encoded_items_total"] == 2
    assert counters["prompt_tokens_computed_total"] == len(different)


def test_several_answers_about_pictures() -> None:
    """Three greedy answers to one question are one answer thrice."""
    case = SHARED.cases[0]
    answer = _ask(case, n=3)
    assert answer.token_ids == (QUESTIONS.expected[case.name].token_ids,) * 3


@pytest.mark.parametrize("case", FAMILY.cases[:6], ids=lambda case: case.name)
def test_log_probabilities_of_prompts(case: Case) -> None:
    """Text of a prompt is as likely as in transformers, cold and beside its kept beginning."""
    inputs = plain_inputs(PROOF.processor, case)
    with torch.inference_mode():
        scores = PROOF.model(**inputs).logits[0].log_softmax(-1)
    ids = inputs["input_ids"][0].tolist()
    expected = [float(scores[i - 1, ids[i]]) for i in range(1, len(ids))]
    with PROOF.engine() as engine:
        for first in (0, len(ids) - 9, 0):
            request = _request(case, max_new_tokens=1, prompt_logprobs_from=first)
            entries = collect(engine.submit(request).outputs()).prompt_logprobs or ()
            begin = len(ids) - len(entries)
            assert begin == first
            for place, entry in enumerate(entries, start=begin):
                if entry.logprob is not None:
                    assert abs(entry.logprob - expected[place - 1]) < 1e-3, place


def test_gemma3_writes_pictures_as_transformers() -> None:
    """500 random sizes are 16 tokens each, between words and line ends, and atomic."""
    processor, reference = processor_of(PROOF.directory), PROOF.processor
    image = reference.tokenizer.image_token
    for width, height in random_sizes(3, 500):
        plan = processor.picture(width, height, Bounds())
        pieces = [image * p if isinstance(p, int) else p for p in plan.layout.pieces]
        assert "".join(pieces) == reference.full_image_sequence
        assert plan.layout.is_atomic
        assert (plan.layout.num_features, plan.num_patches) == (NUM_TOKENS, 64)


def test_gemma3_prepares_pixels_as_transformers() -> None:
    """Resized and normalised pixels are equal, bit for bit."""
    processor, reference = processor_of(PROOF.directory), PROOF.processor.image_processor
    for width, height in ((56, 56), (131, 47), (33, 90), (1, 1), (400, 20)):
        pixels = picture(width, width, height)
        expected = reference(Image.fromarray(pixels), return_tensors="np")["pixel_values"][0]
        found = processor.inputs([pixels], ())["pixel_values"]
        np.testing.assert_array_equal(found, expected)


def test_gemma3_sees_pictures_alike_alone_and_together() -> None:
    """Features do not depend on the pictures encoded beside."""
    eyes = build_model(variant(PROOF.directory, {})).pictures
    assert eyes is not None
    processor = processor_of(PROOF.directory)
    items = [processor.inputs([picture(seed, 70, 50)], ()) for seed in range(4)]
    with torch.inference_mode():
        alone = [eyes.encode([item])[0] for item in items]
        for one, among in zip(alone, eyes.encode(items), strict=True):
            torch.testing.assert_close(one, among, atol=1e-5, rtol=0)


def test_gemma3_sees_every_picture_at_one_size() -> None:
    """Bounds that the one size breaks are the caller's fault."""
    with pytest.raises(BadRequest, match="max_pixels"):
        processor_of(PROOF.directory).picture(40, 40, Bounds(max_pixels=3000))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vision_config": {"model_type": "clip_vision_model"}}, "clip_vision_model"),
        ({"mm_tokens_per_image": 9}, "mm_tokens_per_image"),
        ({"text_config": {"use_bidirectional_attention": True}}, "use_bidirectional"),
    ],
)
def test_gemma3_variants_are_refused_by_name(changes: Mapping[str, Any], named: str) -> None:
    """Another tower, uneven pooling and attention to later text are refused at load."""
    with pytest.raises(UnsupportedModel, match=named):
        build_model(variant(PROOF.directory, changes))


def test_pan_and_scan_is_refused_by_name(tmp_path: Path) -> None:
    """Crops beside the picture are not made, so a checkpoint that wants them is refused."""
    settings = {"image_processor_type": "Gemma3ImageProcessor", "do_pan_and_scan": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(UnsupportedModel, match="do_pan_and_scan"):
        load_processor(tmp_path, read_config(PROOF.directory))


def test_a_directory_of_an_older_release_is_read(tmp_path: Path) -> None:
    """Settings in three files, as Gemma 3 4B has them: 256 tokens of 896 x 896 pixels."""
    pictures = {
        "image_processor_type": "Gemma3ImageProcessor",
        "do_pan_and_scan": None,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "resample": 2,
        "size": {"height": 896, "width": 896},
    }
    files = {
        "preprocessor_config.json": pictures,
        "processor_config.json": {"image_seq_length": 256},
        "tokenizer_config.json": {"boi_token": "<boi>", "eoi_token": "<eoi>"},
    }
    for name, settings in files.items():
        (tmp_path / name).write_text(json.dumps(settings))
    config = {"model_type": "gemma3", "vision_config": {"image_size": 896, "patch_size": 14}}
    processor = load_processor(tmp_path, config)
    plan = processor.picture(3080, 2000, Bounds())
    assert plan.layout.pieces == ("\n\n<boi>", 256, "<eoi>\n\n")
    assert (plan.num_patches, processor.style.image_text) == (4096, "<boi>")


def test_a_processor_of_other_pictures_is_refused() -> None:
    """A processor that writes another number of tokens than the model has is refused."""
    checkpoint = variant(PROOF.directory, {"mm_tokens_per_image": 4})
    with pytest.raises(ModelRefused, match="16 tokens"):
        load_processor(checkpoint.path, checkpoint.config)


def _request(case: Case, **sampling: Any) -> Request:
    request = QUESTIONS._request(case)
    return replace(request, sampling=replace(request.sampling, **sampling))


def _ask(case: Case, **sampling: Any) -> Answer:
    with QUESTIONS.engine() as engine:
        return collect(engine.submit(_request(case, **sampling)).outputs())
