"""Paged attention against a dense reference that reads each query's slots one by one."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tensor.kernels.steps import NUM_SLOTS, Step, steps

from mmserve.kernels import KvTensors, QueryRow, TorchAttention


def _store(
    num_kv_heads: int, size: int, seed: int, dtype: torch.dtype = torch.float32
) -> KvTensors:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, num_kv_heads, NUM_SLOTS, size)
    return KvTensors(*(torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2)))


def _dense(
    kv: KvTensors,
    layer: int,
    rows: list[QueryRow],
    queries: torch.Tensor,
    window: int | None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Every row alone, all of its scores, in double precision."""
    outputs = []
    first = 0
    for row in rows:
        keys = kv.keys[layer][:, row.slots].double()
        values = kv.values[layer][:, row.slots].double()
        num_queries, size = row.num_queries, queries.shape[-1]
        own = queries[first : first + num_queries].double()
        own = own.view(num_queries, keys.shape[0], -1, size)
        key_at, query_at = np.arange(len(row.slots)), np.arange(row.start, len(row.slots))
        hidden = key_at > query_at[:, None]
        for start, end in row.two_way:
            is_in = (query_at >= start) & (query_at < end)
            hidden[np.ix_(is_in, np.arange(start, end))] = False
        if window:
            hidden |= key_at <= query_at[:, None] - window
        scores = torch.einsum("nghd,gld->nghl", own, keys) * size**-0.5
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(torch.from_numpy(hidden)[:, None, None], -torch.inf)
        out = torch.einsum("nghl,gld->nghd", scores.softmax(dim=-1), values)
        outputs.append(out.flatten(1, 2))
        first += num_queries
    return torch.cat(outputs).float()


@settings(max_examples=60)
@given(
    step=steps(),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    dtype=st.sampled_from([torch.float32, torch.float32, torch.float64]),
    seed=st.integers(0, 100),
)
def test_attention_equals_the_dense_reference(
    step: Step, heads: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    """Whatever rows share and however slots lie, every query sees exactly its own past.

    Of doubles the CPU's fused kernel is not used, so that both ways are compared.
    """
    kv = _store(heads[1], 8, seed, dtype)
    num_tokens = sum(row.num_queries for row in step.rows)
    generator = torch.Generator().manual_seed(seed + 1)
    queries = torch.randn(num_tokens, heads[0], 8, generator=generator, dtype=dtype)
    plan = TorchAttention().plan(kv, step.rows, window=step.window)
    expected = _dense(kv, 1, step.rows, queries, step.window)
    for _ in range(2):
        found = plan.attend(1, queries).float()
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@settings(max_examples=60)
@given(
    step=steps(),
    softcap=st.sampled_from([None, 2.0]),
    window=st.sampled_from([None, None, 3, 40]),
    seed=st.integers(0, 100),
)
def test_ranges_seen_both_ways_equal_the_dense_reference(
    step: Step, softcap: float | None, window: int | None, seed: int
) -> None:
    """Tokens of a range see all of it that a window leaves; scores are bent if asked.

    A range may begin before a row's queries: they may be the last few of what a step computes.
    """
    random = np.random.default_rng(seed)
    rows = []
    for row in step.rows:
        first = max(0, row.start - int(random.integers(30)))
        cuts = np.sort(random.choice(np.arange(first, len(row.slots) + 1), 4)).tolist()
        spans = ((cuts[0], cuts[1]), (cuts[2], cuts[3]))[: random.integers(3)]
        rows.append(QueryRow(row.num_queries, row.slots, spans))
    kv = _store(2, 8, seed)
    queries = torch.from_numpy(
        random.standard_normal((sum(row.num_queries for row in rows), 4, 8)).astype("float32")
    )
    plan = TorchAttention().plan(kv, rows, window=window, softcap=softcap)
    expected = _dense(kv, 1, rows, queries, window, softcap)
    torch.testing.assert_close(plan.attend(1, queries), expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("most_queries", [1, 4])
def test_a_neighbour_that_went_wrong_is_not_felt(most_queries: int) -> None:
    """Values that are not numbers in one row's KV do not reach the rows of its table."""
    kv = _store(2, 8, 0)
    rows = [
        QueryRow(1 + i % most_queries, np.arange(i * 32, i * 32 + 20 - i)) for i in range(8)
    ]
    owner = np.repeat(np.arange(8), [row.num_queries for row in rows])
    queries = torch.randn(len(owner), 4, 8)
    plan = TorchAttention().plan(kv, rows)
    before = plan.attend(0, queries)
    broken = torch.full((17, 2, 8), torch.nan)
    TorchAttention().writer(kv, rows[3].slots).write(0, broken, broken)
    after = plan.attend(0, queries)
    assert after[owner == 3].isnan().all()
    torch.testing.assert_close(after[owner != 3], before[owner != 3])


def test_a_long_prefill_is_done_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs do not depend on how many scores are held at once."""
    kv = _store(2, 8, 0)
    slots = np.random.default_rng(0).permutation(NUM_SLOTS)[:300]
    rows = [QueryRow(200, slots)]
    queries = torch.randn(200, 4, 8)
    whole = TorchAttention().plan(kv, rows).attend(0, queries)
    monkeypatch.setattr("mmserve.kernels.attention_torch.MAX_SCORES", 5000)
    parts = TorchAttention().plan(kv, rows).attend(0, queries)
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("slots", [[5, 6, 7, 8, 20, 21, 22, 23] * 5, list(range(100, 0, -3))])
def test_writer_puts_each_token_in_its_slot(slots: list[int]) -> None:
    """Runs and scattered slots are written alike, and nothing else changes."""
    places = np.unique(np.array(slots))
    kv = _store(2, 8, 0)
    before = kv.keys.clone()
    keys, values = torch.randn(len(places), 2, 8), torch.randn(len(places), 2, 8)
    TorchAttention().writer(kv, places).write(1, keys, values)
    before[1][:, places] = keys.transpose(0, 1)
    assert torch.equal(kv.keys, before)
    assert torch.equal(kv.values[1][:, places], values.transpose(0, 1))
