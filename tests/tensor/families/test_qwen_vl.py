"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL through the engine against transformers."""

from __future__ import annotations

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.families.qwen_cases import family, inputs
from support.families.qwen_checkpoints import CLASSES, tiny_qwen_vl
from support.proof import Case, Proof, check_goldens, picture, same

from mmserve.core import ImagePart, Request, Turn, UnsupportedModel
from mmserve.models import Checkpoint
from mmserve.models.config import DecoderConfig
from mmserve.models.families import qwen_vl
from mmserve.vision.families import load_processor
from mmserve.vision.processor import Bounds

FAMILIES = tuple(CLASSES)
MOST_PIXELS = 5000


@functools.cache
def _proof(name: str) -> Proof:
    return Proof(family(name))


@pytest.mark.parametrize("name", FAMILIES)
def test_qwen_answers_as_in_transformers(name: str) -> None:
    """Prompts, log-probabilities and 64 tokens are equal, in whatever pieces and company."""
    _proof(name).check_everyhow()


@pytest.mark.parametrize("name", FAMILIES)
def test_qwen_goldens(name: str) -> None:
    """What transformers says of the small checkpoints is written down, to be read."""
    check_goldens(_proof(name))


class _Bounded(Proof):
    """Every picture asked for with a bound of its own."""

    def _request(self, case: Case) -> Request:
        request = super()._request(case)
        turns = [part for part in request.parts if isinstance(part, Turn)]
        bounded = [replace(turn, parts=tuple(map(_bounded, turn.parts))) for turn in turns]
        return replace(request, parts=tuple(bounded))


def _bounded(part: Any) -> Any:
    return replace(part, max_pixels=MOST_PIXELS) if isinstance(part, ImagePart) else part


def _smaller(processor: Any, case: Case) -> Any:
    processor.image_processor.size["longest_edge"] = MOST_PIXELS
    return inputs(processor, case)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_bounded_picture_is_one_of_a_smaller_limit(name: str) -> None:
    """A request's `max_pixels` does what the same limit in the processor's settings does."""
    case = Case("bounded", (("user", (picture(9, 300, 200), "What is this?")),))
    proof = _Bounded(replace(family(name), cases=(case,), inputs=_smaller, num_tokens=16))
    with proof.engine() as engine:
        same(proof.read(engine, [case])[0], proof.expected["bounded"], name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_chat_about_a_long_clip_is_the_same_warm(name: str) -> None:
    """The next question finds the answer before it in the cache, and is answered as cold."""
    proof = _proof(name)
    first = next(case for case in proof.family.cases if case.name == "clip")
    with proof.engine() as engine:
        answer = proof.read(engine, [first])[0]
        text = proof.processor.tokenizer.decode(answer.token_ids[:40])
        turns = (*first.turns, ("assistant", (text,)), ("user", ("Why?",)))
        case = Case("again", turns)
        cold = proof.read(engine, [case])[0]
        warm = proof.read(engine, [case])[0]
    with proof.engine(radix_cache=False) as engine:
        alone = proof.read(engine, [case])[0]
    same(cold, alone, f"{name}: behind the first question")
    same(warm, alone, f"{name}: asked again")


@pytest.mark.parametrize("name", FAMILIES)
def test_items_are_encoded_alike_together_and_alone(name: str) -> None:
    """Features of pictures and groups of other sizes do not depend on who is in the batch."""
    directory = tiny_qwen_vl(name)
    config = json.loads((directory / "config.json").read_text())
    checkpoint = Checkpoint(directory, config, torch.float32, torch.device("cpu"))
    eyes = qwen_vl.build(checkpoint).pictures
    processor = load_processor(directory, config)
    assert eyes is not None
    items = []
    for seed, (width, height) in enumerate(((300, 200), (40, 260), (64, 64), (500, 90))):
        plan = processor.picture(width, height, Bounds())
        items.append(processor.inputs([picture(seed, width, height)], plan.recipe))
    with torch.inference_mode():
        together = eyes.encode(items)
        alone = [eyes.encode([item])[0] for item in items]
    for some, one in zip(together, alone, strict=True):
        torch.testing.assert_close(some, one, atol=2e-5, rtol=0)


def test_older_checkpoints_keep_text_fields_outside() -> None:
    """A config.json without `text_config`, as first published, gives the same decoder."""
    directory = tiny_qwen_vl("qwen2_vl")
    config = json.loads((directory / "config.json").read_text())
    nested = dict(config["text_config"])
    rope = nested.pop("rope_parameters")
    nested["rope_theta"] = rope["rope_theta"]
    nested["rope_scaling"] = {"type": "mrope", "mrope_section": rope["mrope_section"]}
    older = {**nested, **{k: v for k, v in config.items() if k != "text_config"}}
    parsed = [
        DecoderConfig.parse(qwen_vl.text_config("qwen2_vl", some)) for some in (older, config)
    ]
    assert parsed[0] == parsed[1]


def test_tied_logits_may_be_told_of_the_text_alone(tmp_path: Path) -> None:
    """Where only `text_config` says that logits are tied, no `lm_head` is missed."""
    shutil.copytree(tiny_qwen_vl("qwen2_5_vl"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["tie_word_embeddings"]
    config["text_config"]["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    qwen_vl.build(Checkpoint(tmp_path, config, torch.float32, torch.device("cpu")))


def test_sliding_windows_are_refused() -> None:
    """A checkpoint that asks for windows in its decoder is refused, since none is known."""
    directory = tiny_qwen_vl("qwen2_vl")
    config = json.loads((directory / "config.json").read_text())
    text = {**config["text_config"], "use_sliding_window": True, "sliding_window": 64}
    text |= {"layer_types": ["sliding_attention"] * 3, "max_window_layers": 0}
    checkpoint = Checkpoint(
        directory, {**config, "text_config": text}, torch.float32, torch.device("cpu")
    )
    with pytest.raises(UnsupportedModel, match="sliding windows"):
        qwen_vl.build(checkpoint)
