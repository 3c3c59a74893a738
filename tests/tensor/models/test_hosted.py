"""Models through transformers' modules: what is read of them, checked, and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama
from support.families import hosted_pictures, hosted_text
from support.families.hosted_text import tiny_hosted
from support.proof import picture
from support.steps import Driver, load

from mmserve.cli.models import HOSTED
from mmserve.core import UnsupportedModel, WeightMismatch
from mmserve.models import Checkpoint, Model, build_model
from mmserve.models.hosted import build_hosted
from mmserve.vision import Bounds, load_processor


def _checkpoint(directory: Path) -> Checkpoint:
    config = json.loads((directory / "config.json").read_text())
    return Checkpoint(directory, config, torch.float32, torch.device("cpu"))


@torch.inference_mode()
def _build(directory: Path) -> Model:
    return build_model(_checkpoint(directory))


def _changed(directory: Path, to: Path, **fields: Any) -> Path:
    """A copy with other fields in its config.json."""
    shutil.copytree(directory, to, dirs_exist_ok=True)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **fields}))
    return to


_REASONS = {
    "bloom": "its layers compute attention themselves",
    "gpt_oss": "layer 0 attends with sinks",
    "mamba": "layers of type 'linear_attention' are not computed",
    "stablelm": "its modules do not hand the step's attention to their layers",
    "t5": "it has an encoder beside its decoder",
    "glm4v": "its positions count time, rows and columns",
    "mllama": "it reads pictures through cross-attention",
    "paligemma": "log-probabilities of pictures differ",
}
_MAKERS: dict[str, Callable[[], Path]] = {
    **{name: lambda name=name: tiny_hosted(name) for name in hosted_text.REFUSED},
    **hosted_pictures.REFUSED,
}


@pytest.mark.parametrize("family", _REASONS)
def test_what_cannot_be_served_is_refused_with_the_reason(family: str) -> None:
    """Every kind of model that our attention cannot host is refused at load, and says why."""
    with pytest.raises(UnsupportedModel, match=_REASONS[family]) as caught:
        _build(_MAKERS[family]())
    assert caught.value.fields["architecture"] == family


def test_the_list_of_models_names_those_that_are_proved() -> None:
    """Every type that is said to be proved through transformers has its proof."""
    proved = (*hosted_text.FAMILIES, *hosted_pictures.FAMILIES)
    assert list(HOSTED) == sorted(family.name for family in proved)


def test_every_refused_family_has_its_reason_here() -> None:
    """No family is said to be refused without proof."""
    assert set(_REASONS) == set(_MAKERS)


LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, "its weights are quantized"),
        ({"rope_parameters": LONGROPE}, "rope type 'longrope'"),
        ({"is_encoder_decoder": True}, "it has an encoder beside its decoder"),
        ({"add_cross_attention": True}, "it reads pictures through cross-attention"),
        ({"max_position_embeddings": None}, "max_position_embeddings"),
    ],
)
def test_variants_are_refused_by_name(
    fields: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    """A field of the configuration that asks for something else is named in the refusal."""
    with pytest.raises(UnsupportedModel, match=reason):
        _build(_changed(tiny_hosted("olmo2"), tmp_path, **fields))


def test_narrow_weights_are_refused() -> None:
    """Matrices of int8 and int4 are the lean decoder's alone."""
    with pytest.raises(UnsupportedModel, match="8-bit weights"):
        load(tiny_hosted("olmo2"), weights="int8")


def test_a_type_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    """The refusal names what is served, and code beside the weights is not run."""
    ran = tmp_path / "ran"
    fields = {
        "model_type": "my_own",
        "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"},
    }
    directory = _changed(tiny_hosted("olmo2"), tmp_path / "model", **fields)
    (directory / "mine.py").write_text(f"open({str(ran)!r}, 'w').close()\n")
    with pytest.raises(UnsupportedModel, match="'my_own' cannot be served") as caught:
        _build(directory)
    assert "llama" in str(caught.value.hint)
    assert not ran.exists()


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """Weights that lack a tensor are refused by its name."""
    directory = _changed(tiny_hosted("olmo2"), tmp_path)
    tensors = load_file(directory / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightMismatch, match=r"layers\.1\.mlp\.up_proj\.weight"):
        _build(directory)


def test_a_tensor_of_another_shape_is_named(tmp_path: Path) -> None:
    """Weights that do not fit the configuration are refused, with both shapes."""
    with pytest.raises(WeightMismatch, match="asks for") as caught:
        _build(_changed(tiny_hosted("olmo2"), tmp_path, intermediate_size=80))
    assert {caught.value.fields["want"], caught.value.fields["got"]} == {(64, 80), (64, 96)}


def test_windows_are_read_from_the_masks_of_layers() -> None:
    """Each layer's window is what its mask shows, whatever the configuration calls it."""
    assert _build(tiny_hosted("cohere2")).decoder.shape.windows == (16, None, 16)
    assert _build(tiny_hosted("starcoder2")).decoder.shape.windows == (16, 16, 16)
    assert _build(tiny_hosted("gpt2")).decoder.shape.windows == (None, None, None)


def test_smaller_values_are_padded_to_keys() -> None:
    """With latent attention keys of 24 and values of 16 lie in a store of 24."""
    shape = _build(tiny_hosted("deepseek_v3")).decoder.shape
    assert (shape.num_kv_heads, shape.head_size) == (4, 24)


def test_embeddings_may_be_narrower_than_layers() -> None:
    """Widths and vocabulary are what the modules give, not what a field says."""
    shape = _build(tiny_hosted("opt")).decoder.shape
    assert (shape.hidden_size, shape.max_positions) == (48, 512)


def test_a_check_of_two_texts_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of which we read a wrong window is refused, not computed wrongly."""
    monkeypatch.setattr(
        "mmserve.models.hosted.attending._how_far", lambda **_: torch.full((1, 1, 1, 1), 4)
    )
    with pytest.raises(UnsupportedModel, match="log-probabilities of text differ"):
        _build(tiny_hosted("olmo2"))


@pytest.mark.parametrize(
    ("family", "changes"),
    [("llama", ()), ("mistral", (("sliding_window", 16),)), ("qwen3", ())],
)
def test_hosted_and_lean_decoders_answer_alike(
    family: str, changes: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A family with a lean decoder gives the same tokens and log-probabilities when hosted."""
    directory = tiny_llama(family, changes=changes)
    prompt = np.random.default_rng(0).integers(8, 260, 40).tolist()
    lean_tokens, lean_scores = Driver(load(directory)).greedy(prompt, 24)
    monkeypatch.setattr("mmserve.models.registry.FAMILIES", {})
    loaded = load(directory)
    assert loaded.info.family == family
    tokens, scores = Driver(loaded).greedy(prompt, 24)
    assert tokens == lean_tokens
    assert scores == pytest.approx(lean_scores, abs=1e-3)


@pytest.mark.parametrize("family", hosted_pictures.MAKERS)
@torch.inference_mode()
def test_pictures_encoded_together_are_as_alone(family: str) -> None:
    """A batch of equal and other sizes gives each picture the features that it has alone."""
    checkpoint = _checkpoint(hosted_pictures.MAKERS[family](0))
    eyes = build_hosted(checkpoint).pictures
    processor = load_processor(checkpoint.path, checkpoint.config)
    assert eyes is not None
    sizes = [(64, 64), (64, 64), (131, 47), (64, 64)]
    items = [processor.inputs([picture(i, *size)], ()) for i, size in enumerate(sizes)]
    for some in (items[:2], items):
        for item, found in zip(some, eyes.encode(some), strict=True):
            torch.testing.assert_close(found, eyes.encode([item])[0], atol=1e-4, rtol=1e-4)
    planned = [processor.picture(*size, Bounds()).layout.num_features for size in sizes]
    assert [len(found) for found in eyes.encode(items)] == planned
