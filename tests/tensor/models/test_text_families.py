"""Variants of text families against transformers, prompt by prompt, and what configs mean."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from support.checkpoints import tiny_llama
from support.steps import Driver, load, reference_logprobs, scores_of

from mmserve.models import DecoderConfig, read_config

_LLAMA3 = (
    ("rope_type", "llama3"),
    ("rope_theta", 10000.0),
    ("factor", 8.0),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 64),
)
_LINEAR = (("rope_type", "linear"), ("rope_theta", 10000.0), ("factor", 4.0))
_YARN = (
    ("rope_type", "yarn"),
    ("rope_theta", 10000.0),
    ("factor", 4.0),
    ("original_max_position_embeddings", 128),
    ("beta_fast", 16.0),
    ("beta_slow", 2.0),
    ("mscale", 1.0),
    ("mscale_all_dim", 0.5),
)
_YARN_UNEVEN = (*_YARN[:4], ("truncate", False), ("attention_factor", 1.2))
_PARTIAL = (("rope_type", "default"), ("rope_theta", 10000.0), ("partial_rotary_factor", 0.5))
_SLIDING = (("use_sliding_window", True), ("sliding_window", 16))
_CASES = {
    "gqa": ("llama", ()),
    "mha": ("llama", (("num_key_value_heads", 4),)),
    "one-kv-head": ("llama", (("num_key_value_heads", 1), ("head_dim", 32))),
    "tied": ("llama", (("tie_word_embeddings", True),)),
    "biases": ("llama", (("attention_bias", True), ("mlp_bias", True))),
    "rope-llama3": ("llama", (("rope_parameters", _LLAMA3),)),
    "rope-linear": ("llama", (("rope_parameters", _LINEAR),)),
    "mistral": ("mistral", ()),
    "mistral-window": ("mistral", (("sliding_window", 16),)),
    "qwen2": ("qwen2", ()),
    "qwen2-window": (
        "qwen2",
        (("use_sliding_window", True), ("sliding_window", 16), ("max_window_layers", 1)),
    ),
    "qwen3": ("qwen3", ()),
    "qwen3-yarn": ("qwen3", (("rope_parameters", _YARN),)),
    "qwen2-yarn-uneven": ("qwen2", (("rope_parameters", _YARN_UNEVEN),)),
    "phi3": ("phi3", ()),
    "phi3-partial": ("phi3", (("rope_parameters", _PARTIAL),)),
    "gemma-biases": ("gemma", (("attention_bias", True),)),
    "gemma2-unbound": (
        "gemma2",
        (("attn_logit_softcapping", None), ("final_logit_softcapping", None)),
    ),
    "gemma3-bound-logits": ("gemma3", (("final_logit_softcapping", 5.0),)),
    "smollm3-window": ("smollm3", (*_SLIDING, ("no_rope_layer_interval", 2))),
}


def _prompt(length: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(8, 260, length).tolist()


@pytest.mark.parametrize("case", _CASES)
def test_prompt_log_probabilities_equal_transformers(case: str) -> None:
    """Every prompt token has the log-probability that transformers gives it."""
    family, changes = _CASES[case]
    directory = tiny_llama(family, changes=changes)
    driver = Driver(load(directory))
    prompt = _prompt(90)
    row = driver.row(prompt, driver.new_slots(90), logprobs_from=1)
    answer = driver.step([row]).rows[0]
    wanted = reference_logprobs(directory, prompt)
    scores = scores_of(answer)
    assert list(scores) == list(range(1, 90))
    expected = torch.tensor([wanted[k - 1, prompt[k]] for k in range(1, 90)])
    assert (torch.tensor(list(scores.values())) - expected).abs().max() < 1e-3
    top = torch.topk(wanted[-1], 5)
    assert [token for token, _ in answer.top] == top.indices.tolist()
    assert [value for _, value in answer.top] == pytest.approx(top.values.tolist(), abs=1e-3)


_FULL, _SLIDES = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("config", "windows", "thetas"),
    [
        ({"model_type": "gemma2"}, (4096, None, 4096), (1e4, 1e4, 1e4)),
        (
            {"model_type": "gemma3_text", "sliding_window_pattern": 2, "sliding_window": 512},
            (512, None, 512),
            (1e4, 1e6, 1e4),
        ),
        (
            {
                "model_type": "gemma3_text",
                "layer_types": [_SLIDES, _SLIDES, _FULL],
                "rope_theta": 5e5,
                "rope_local_base_freq": 2e4,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            (4096, 4096, None),
            (2e4, 2e4, 5e5),
        ),
        ({"model_type": "smollm3", "no_rope_layers": [1, 0, 1]}, (None,) * 3, (2e6, None, 2e6)),
        ({"model_type": "phi3", "sliding_window": 2047}, (2047,) * 3, (1e4, 1e4, 1e4)),
        ({"model_type": "mistral"}, (4096,) * 3, (1e4, 1e4, 1e4)),
    ],
)
def test_layers_have_the_kinds_of_their_family(
    config: dict[str, Any],
    windows: tuple[int | None, ...],
    thetas: tuple[float | None, ...],
) -> None:
    """A sparse config.json gives each layer the window and rotary base of its family."""
    parsed = DecoderConfig.parse({**config, "num_hidden_layers": 3})
    assert parsed.windows == windows
    assert tuple(rope and rope.theta for rope in parsed.ropes) == thetas


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("qwen2_vl_text", "qwen2"),
        ("qwen2_5_vl_text", "qwen2"),
        ("qwen3_vl_text", "qwen3"),
        ("gemma3", "gemma3_text"),
    ],
)
def test_a_text_config_has_the_arithmetic_of_its_family(word: str, same: str) -> None:
    """Words inside of a vision family's config mean the text family they are made of."""
    sizes = {**read_config(tiny_llama()), "rope_parameters": {"rope_theta": 1e4}}
    pair = [DecoderConfig.parse({**sizes, "model_type": name}) for name in (word, same)]
    assert pair[0] == pair[1]


def test_sections_turn_by_axes() -> None:
    """Rotary sections name the axis of each pair: in runs, or in turns."""
    sections = {"type": "mrope", "mrope_section": [4, 2, 2]}
    config = {**read_config(tiny_llama()), "model_type": "qwen2_vl", "rope_parameters": None}
    runs = DecoderConfig.parse({**config, "rope_scaling": sections})
    turns = DecoderConfig.parse(
        {**config, "rope_scaling": {**sections, "mrope_interleaved": True}}
    )
    assert runs.ropes[0] is not None
    assert turns.ropes[0] is not None
    assert runs.ropes[0].axes == (0, 0, 0, 0, 1, 1, 2, 2)
    assert turns.ropes[0].axes == (0, 1, 2, 0, 1, 2, 0, 0)


def test_yarn_reaches_as_far_as_its_factor_says() -> None:
    """A checkpoint that was given YaRN alone keeps its first length in config.json."""
    spec = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    config = {"model_type": "qwen2", "max_position_embeddings": 32768, "rope_scaling": spec}
    assert DecoderConfig.parse(config).max_positions == 131072


@pytest.mark.parametrize(("context_length", "factors"), [(64, (2.0,)), (65, (3.0,))])
def test_longrope_is_long_where_contexts_may_be(
    context_length: int, factors: tuple[float, ...]
) -> None:
    """Short factors as long as no sequence is longer than the original context."""
    spec = {"rope_type": "longrope", "short_factor": [2.0], "long_factor": [3.0]}
    config = {
        "model_type": "phi3",
        "head_dim": 2,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 64,
        "rope_scaling": spec,
    }
    parsed = DecoderConfig.parse(config, context_length=context_length)
    rope = parsed.ropes[0]
    assert rope is not None
    assert rope.pair_factors == factors
    assert rope.gain == pytest.approx(math.sqrt(1.5))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_half_precision_is_close_to_full(family: str, dtype: str) -> None:
    """Log-probabilities of a prompt in half precision are within its rounding of float32's."""
    directory, prompt = tiny_llama(family), _prompt(60)
    found = []
    for name in ("float32", dtype):
        driver = Driver(load(directory, dtype=name))
        row = driver.row(prompt, driver.new_slots(60), logprobs_from=1)
        found.append(torch.tensor(list(scores_of(driver.step([row]).rows[0]).values())))
    error = (found[1] - found[0]).abs().mean()
    assert error < (0.04 if dtype == "bfloat16" else 0.005)


def test_shards_give_the_same_model() -> None:
    """A checkpoint in several files answers as the same one in a single file."""
    whole, shards = tiny_llama(), tiny_llama(max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    prompt = _prompt(20)
    answers = [Driver(load(path)).greedy(prompt, 4) for path in (whole, shards)]
    assert answers[0] == answers[1]
