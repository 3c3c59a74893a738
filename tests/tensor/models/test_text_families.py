"""Text families against transformers: log-probabilities and greedy tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.checkpoints import tiny_llama
from support.steps import Driver, load, reference, reference_logprobs, scores_of

_LLAMA3 = (
    ("rope_type", "llama3"),
    ("rope_theta", 10000.0),
    ("factor", 8.0),
    ("low_freq_factor", 1.0),
    ("high_freq_factor", 4.0),
    ("original_max_position_embeddings", 64),
)
_LINEAR = (("rope_type", "linear"), ("rope_theta", 10000.0), ("factor", 4.0))
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


@pytest.mark.parametrize("case", ["gqa", "mistral-window", "qwen2", "qwen2-window", "qwen3"])
def test_greedy_tokens_equal_transformers(case: str) -> None:
    """Forty greedy tokens are those of transformers' generate."""
    family, changes = _CASES[case]
    directory = tiny_llama(family, changes=changes)
    prompt = _prompt(30, seed=1)
    tokens, _ = Driver(load(directory)).greedy(prompt, 40)
    generated = reference(directory).generate(
        torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=-1
    )
    assert tokens == generated[0, 30:].tolist()


def test_shards_give_the_same_model() -> None:
    """A checkpoint in several files answers as the same one in a single file."""
    whole, shards = tiny_llama(), tiny_llama(max_shard_size="100KB")
    assert len(list(shards.glob("*.safetensors"))) > 1
    prompt = _prompt(20)
    answers = [Driver(load(path)).greedy(prompt, 4) for path in (whole, shards)]
    assert answers[0] == answers[1]
