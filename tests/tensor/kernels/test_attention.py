"""Paged attention against a dense reference that reads each query's slots one by one."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from mmserve.kernels import KvTensors, KvWriter, QueryRow, TorchAttention
from mmserve.kernels.segments import plan_segments

NUM_SLOTS = 1200


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    rows: list[QueryRow]
    heads: tuple[int, int]
    window: int | None


def _store(num_kv_heads: int, size: int, seed: int) -> KvTensors:
    generator = torch.Generator().manual_seed(seed)
    shape = (2, num_kv_heads, NUM_SLOTS, size)
    return KvTensors(
        torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    )


def _dense(
    kv: KvTensors, layer: int, rows: list[QueryRow], queries: torch.Tensor, window: int | None
) -> torch.Tensor:
    """Every query alone, in double precision."""
    outputs = []
    first = 0
    for row in rows:
        for i in range(row.num_queries):
            end = row.start + i + 1
            seen = row.slots[max(0, end - window) if window else 0 : end]
            keys = kv.keys[layer][:, seen].double()
            values = kv.values[layer][:, seen].double()
            grouped = queries[first + i].double().view(keys.shape[0], -1, keys.shape[-1])
            scores = torch.einsum("ghd,gld->ghl", grouped, keys) * keys.shape[-1] ** -0.5
            out = torch.einsum("ghl,gld->ghd", scores.softmax(dim=-1), values)
            outputs.append(out.flatten(0, 1))
        first += row.num_queries
    return torch.stack(outputs).float()


@st.composite
def _cases(draw: st.DrawFn) -> _Case:
    """Rows that branch off from each other at random places, slots in runs or scattered."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    free = np.arange(NUM_SLOTS)
    if draw(st.booleans()):
        rng.shuffle(free)
    taken = 0
    rows: list[QueryRow] = []
    for _ in range(draw(st.integers(1, 6))):
        parent = (
            rows[rng.integers(len(rows))].slots if rows and rng.random() < 0.8 else free[:0]
        )
        kept = parent[: rng.integers(len(parent) + 1)] if rng.random() < 0.5 else parent[:-1]
        new = int(rng.choice([1, 2, 5, 40, 130]))
        slots = np.concatenate([kept, free[taken : taken + new]])
        taken += new
        rows.append(QueryRow(int(rng.integers(1, new + 1)), slots))
    heads = draw(st.sampled_from([(4, 4), (4, 2), (6, 1)]))
    return _Case(rows, heads, draw(st.sampled_from([None, None, 8, 50])))


@settings(max_examples=60, deadline=None)
@given(case=_cases(), seed=st.integers(0, 100))
def test_attention_equals_the_dense_reference(case: _Case, seed: int) -> None:
    """Whatever rows share and however slots lie, every query sees exactly its own past."""
    kv = _store(case.heads[1], 8, seed)
    num_tokens = sum(row.num_queries for row in case.rows)
    generator = torch.Generator().manual_seed(seed + 1)
    queries = torch.randn(num_tokens, case.heads[0], 8, generator=generator)
    plan = TorchAttention().plan(kv, case.rows, window=case.window)
    expected = _dense(kv, 1, case.rows, queries, case.window)
    torch.testing.assert_close(plan.attend(1, queries), expected, atol=2e-5, rtol=1e-4)


def test_sixteen_pictures_are_read_once_each() -> None:
    """Eight questions on each of 16 pictures are one shared segment a picture and one batch."""
    rows = []
    for picture in range(16):
        base = np.arange(picture * 60, picture * 60 + 50)
        for question in range(8):
            own = 1000 + np.arange(5) * 8 + question
            rows.append(QueryRow(1, np.concatenate([base, own])))
    step = plan_segments(rows)
    assert [len(segment.queries) for segment in step.segments] == [8] * 16
    assert {len(segment.slots) for segment in step.segments} == {50}
    assert [len(batch.table.queries) for batch in step.batches] == [128]
    assert step.num_levels == 2


def test_shared_prefix_of_a_group_is_cut_at_every_depth() -> None:
    """Rows share a system prompt and pairs of them a picture: three levels are read."""
    system, pictures = np.arange(100), [np.arange(200, 300), np.arange(400, 500)]
    rows = [
        QueryRow(1, np.concatenate([system, pictures[i // 2], [600 + i]])) for i in range(4)
    ]
    step = plan_segments(rows)
    shapes = sorted((len(s.queries), len(s.slots)) for s in step.segments)
    assert shapes == [(2, 100), (2, 100), (4, 100)]
    assert step.num_levels == 3


def test_a_neighbour_that_went_wrong_is_not_felt() -> None:
    """Values that are not numbers in one row's KV do not reach the rows of its batch."""
    kv = _store(2, 8, 0)
    rows = [QueryRow(1, np.arange(i * 32, i * 32 + 20 - i)) for i in range(8)]
    queries = torch.randn(8, 4, 8)
    plan = TorchAttention().plan(kv, rows)
    before = plan.attend(0, queries)
    broken = torch.full((17, 2, 8), torch.nan)
    KvWriter(kv, rows[3].slots).write(0, broken, broken)
    after = plan.attend(0, queries)
    assert after[3].isnan().all()
    others = [i for i in range(8) if i != 3]
    torch.testing.assert_close(after[others], before[others])


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
    KvWriter(kv, places).write(1, keys, values)
    before[1][:, places] = keys.transpose(0, 1)
    assert torch.equal(kv.keys, before)
    assert torch.equal(kv.values[1][:, places], values.transpose(0, 1))
