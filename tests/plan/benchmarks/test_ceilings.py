"""Ceilings are of the work done, and leave torch as it was; costs are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from benchmarks.ceilings import (
    CeilingMeter,
    Ceilings,
    ceiling_rows,
    highest,
    median_ceilings,
)
from benchmarks.model_costs import model_costs

SMALL = {"buffer_bytes": 1 << 16, "matrix_sizes": (16,), "probe_s": 0.0}


def ceilings(read: float, *, threads: int = 2, matrix: float = 1.0) -> Ceilings:
    """Ceilings of which only some matter."""
    return Ceilings(
        threads=threads,
        read_bytes_per_s=read,
        copy_bytes_per_s=2 * read,
        matrix_flop_per_s=matrix,
    )


def test_rates_are_of_the_bytes_and_operations_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """When every call takes a second, rates are the buffer, twice the buffer, and 2 n ** 3."""
    meter = CeilingMeter(**SMALL)
    monkeypatch.setattr(meter, "_best_s", lambda call: (call(), 1.0)[1])
    found = meter.measure(1)
    assert (found.read_bytes_per_s, found.copy_bytes_per_s) == (1 << 16, 2 << 16)
    assert found.matrix_flop_per_s == 2 * 16**3


def test_the_fastest_of_several_ways_is_the_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three ways to read, the one that takes a quarter of a second counts."""
    meter = CeilingMeter(**SMALL)
    seconds = iter([1.0, 0.25, 0.5, 1.0, 1.0])
    monkeypatch.setattr(meter, "_best_s", lambda call: next(seconds))
    assert meter.measure(1).read_bytes_per_s == 4 * (1 << 16)


def test_number_of_threads_is_put_back() -> None:
    """Torch has as many threads after a measurement as before it."""
    before = torch.get_num_threads()
    CeilingMeter(**SMALL).measure(before + 1)
    assert torch.get_num_threads() == before


def test_a_measurement_is_of_each_number_of_threads() -> None:
    """One thread and all of them, or just one."""
    meter = CeilingMeter(**SMALL)
    assert [one.threads for one in meter.measure_all(2)] == [1, 2]
    assert [one.threads for one in meter.measure_all(1)] == [1]


def test_median_is_taken_of_each_ceiling_alone() -> None:
    """A round with the best reading may have the worst products."""
    rounds = [ceilings(1, matrix=9), ceilings(5, matrix=7), ceilings(3, matrix=8)]
    assert median_ceilings(rounds) == ceilings(3, matrix=8)


def test_ceilings_of_other_threads_do_not_mix() -> None:
    """A median over one thread and two is refused, and so is one of nothing."""
    with pytest.raises(ValueError, match="no common median"):
        median_ceilings([ceilings(1), ceilings(1, threads=1)])
    with pytest.raises(ValueError, match="no common median"):
        median_ceilings([])


def test_highest_takes_the_better_number_of_threads() -> None:
    """Reading may be best on one thread while products are best on two."""
    found = highest([ceilings(9, threads=1, matrix=1), ceilings(4, matrix=2)])
    assert found == Ceilings(
        threads=2, read_bytes_per_s=9, copy_bytes_per_s=18, matrix_flop_per_s=2
    )


def test_rows_have_median_and_range_in_giga() -> None:
    """Two rounds of one number of threads give a row a ceiling, between least and most."""
    rows = ceiling_rows([[ceilings(1e9)], [ceilings(3e9)], [ceilings(2e9)]])
    assert [row["ceiling"] for row in rows] == ["read", "copy", "matrix"]
    assert (rows[0]["least"], rows[0]["median"], rows[0]["most"]) == (1.0, 2.0, 3.0)


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_costs_count_the_parameters_of_transformers(tmp_path: Path, kv_heads: int) -> None:
    """Values of matrices and norms together are the parameters of the same model there."""
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        tie_word_embeddings=True,
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(config)
    costs = model_costs(tmp_path)
    assert costs.matrix_values + costs.gain_values == model.num_parameters()
    assert costs.step_bytes("full") == 4 * model.num_parameters()
    assert costs.step_bytes("int8") == costs.matrix_values + 4 * costs.gain_values


def test_prefill_counts_what_torch_counts(tmp_path: Path) -> None:
    """Operations of a prompt are those torch counts for its products, with causal attention.

    Its counter takes every pair of tokens of attention, and logits of every token.
    """
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415

    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    costs, num_tokens = model_costs(tmp_path), 8
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(input_ids=torch.zeros((1, num_tokens), dtype=torch.long), use_cache=False)
    logits = 2 * costs.head_values * (num_tokens - 1)
    future = 4 * (num_tokens * (num_tokens - 1) // 2) * 32 * 2
    assert counter.get_total_flops() - logits - future == costs.prefill_flop(num_tokens)
