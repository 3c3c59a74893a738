"""What a checkpoint may look like, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import tiny_llama, tiny_llava
from support.steps import Driver, encode_item, load

from mmserve.core import FeatureUse, ModelRefused, NotFound, UnsupportedModel, WeightMismatch
from mmserve.models import FAMILIES, DecoderConfig, LlavaConfig, read_config
from mmserve.models.rope import rope_frequencies

Tensors = dict[str, torch.Tensor]


def _copy(directory: Path, target: Path, edit: Callable[[Tensors], Tensors]) -> Path:
    """A copy whose tensors went through `edit`."""
    shutil.copytree(directory, target)
    file = target / "model.safetensors"
    save_file(edit(load_file(file)), file)
    return target


def _renamed(*pairs: tuple[str, str]) -> Callable[[Tensors], Tensors]:
    def edit(tensors: Tensors) -> Tensors:
        out = {}
        for name, tensor in tensors.items():
            for old, new in pairs:
                if name.startswith(old):
                    name = new + name.removeprefix(old)
                    break
            out[name] = tensor
        return out

    return edit


def _answer(directory: Path) -> tuple[Any, ...]:
    driver = Driver(load(directory))
    item = encode_item(1, 56)
    ids = [1, 4, *[3] * 16, 40, 50, 60]
    use = FeatureUse(item.digest, 0, 2, 16)
    row = driver.row(ids, driver.new_slots(len(ids)), features=[use])
    return driver.step([row], [item]).rows[0].top


@pytest.mark.parametrize(
    "pairs",
    [
        [
            ("language_model.model.", "model.language_model."),
            ("language_model.lm_head.", "lm_head."),
            ("vision_tower.", "model.vision_tower."),
            ("multi_modal_projector.", "model.multi_modal_projector."),
        ],
        [("vision_tower.", "vision_tower.vision_model.")],
        [("vision_tower.", "model.vision_tower.vision_model.")],
    ],
)
def test_old_and_new_names_load_alike(pairs: list[tuple[str, str]], tmp_path: Path) -> None:
    """Every spelling of a checkpoint's tensors gives the same model."""
    copy = _copy(tiny_llava(), tmp_path / "copy", _renamed(*pairs))
    names = set(load_file(copy / "model.safetensors"))
    assert names != set(load_file(tiny_llava() / "model.safetensors"))
    assert _answer(copy) == _answer(tiny_llava())


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    """The error says which tensor and which shape was wanted."""

    def edit(tensors: Tensors) -> Tensors:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        return tensors

    with pytest.raises(WeightMismatch) as caught:
        load(_copy(tiny_llama(), tmp_path / "copy", edit))
    name = "text.layers.1.mlp.up_proj.weight"
    assert caught.value.fields == {"name": name, "want": (96, 64), "got": None}


def test_a_misshaped_tensor_is_named(tmp_path: Path) -> None:
    """The error says which tensor, and both shapes."""

    def edit(tensors: Tensors) -> Tensors:
        return {**tensors, "model.norm.weight": torch.ones(65)}

    with pytest.raises(WeightMismatch) as caught:
        load(_copy(tiny_llama(), tmp_path / "copy", edit))
    wanted = {"name": "model.norm.weight", "want": (64,), "got": (65,)}
    assert caught.value.fields == wanted


def test_a_left_over_tensor_is_named(tmp_path: Path) -> None:
    """A tensor that no layer reads is an error: it would change the model's answers."""

    def edit(tensors: Tensors) -> Tensors:
        return {**tensors, "model.layers.0.self_attn.q_proj.bias": torch.ones(64)}

    with pytest.raises(WeightMismatch) as caught:
        load(_copy(tiny_llama(), tmp_path / "copy", edit))
    assert caught.value.fields["name"] == "model.layers.0.self_attn.q_proj.bias"


def test_half_precision_is_widened_on_a_cpu(tmp_path: Path) -> None:
    """A float16 checkpoint runs in float32, from the same rounded weights."""

    def half(tensors: Tensors) -> Tensors:
        return {name: tensor.half() for name, tensor in tensors.items()}

    def rounded(tensors: Tensors) -> Tensors:
        return {name: tensor.half().float() for name, tensor in tensors.items()}

    copies = [_copy(tiny_llava(), tmp_path / f.__name__, f) for f in (half, rounded)]
    assert _answer(copies[0]) == _answer(copies[1])


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4}}, "proportional"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "short_factor"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [3, 2, 2]}}, "mrope_section"),
        ({"rope_scaling": "yarn"}, "'yarn'"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"model_type": "gemma3", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"model_type": "gemma2", "layer_types": ["chunked_attention"] * 3}, "chunked"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"num_local_experts": 8}, "experts"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], word: str) -> None:
    """A configuration that asks for more than the decoder does is refused, naming it."""
    config = {**read_config(tiny_llama()), **changes}
    if "rope_scaling" in changes:
        del config["rope_parameters"]
    with pytest.raises(UnsupportedModel) as caught:
        DecoderConfig.parse(config)
    assert word in str(caught.value)


def test_dynamic_rope_is_plain_within_the_models_context() -> None:
    """It stretches only what is longer than the model's context, which no sequence is."""
    config = {**read_config(tiny_llama()), "rope_parameters": None}
    dynamic = {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"}
    plain = DecoderConfig.parse(config)
    found = DecoderConfig.parse({**config, "rope_scaling": dynamic})
    assert found.max_positions == plain.max_positions
    for ours, theirs in zip(found.ropes, plain.ropes, strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(rope_frequencies(ours, 16), rope_frequencies(theirs, 16))


def test_an_unknown_family_hears_which_are_served(tmp_path: Path) -> None:
    """The hint lists the families."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "unheard-of"}))
    with pytest.raises(UnsupportedModel) as caught:
        load(tmp_path)
    assert caught.value.fields["architecture"] == "unheard-of"
    assert f"served are {', '.join(sorted(FAMILIES))}" in str(caught.value.hint)


def test_a_directory_without_a_model_is_an_error(tmp_path: Path) -> None:
    """Neither an empty directory nor one without weights is a model."""
    with pytest.raises(NotFound):
        load(tmp_path)
    shutil.copy(tiny_llama() / "config.json", tmp_path)
    with pytest.raises(ModelRefused):
        load(tmp_path)


def test_a_sparse_llava_config_takes_the_families_defaults() -> None:
    """The first published LLaVA-1.5 names little; the rest is as its families have it."""
    config = LlavaConfig.parse(
        {
            "model_type": "llava",
            "image_token_index": 32000,
            "text_config": {"model_type": "llama", "vocab_size": 32064},
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": 1024,
                "image_size": 336,
                "intermediate_size": 4096,
                "num_attention_heads": 16,
                "num_hidden_layers": 24,
                "patch_size": 14,
            },
        }
    )
    assert config.tokens_per_image == 576
    assert config.feature_depths == (23,)
    assert config.text.hidden_size == 4096
    assert config.text.num_kv_heads == 32
