"""Compiled attention: many shapes against torch's own, threads, and what writes its KV."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensor.kernels.steps import NUM_SLOTS, Step, steps

from mmserve.kernels import KvTensors, QueryRow, TorchAttention
from mmserve.kernels.native.attention import NativeAttention
from mmserve.kernels.native.build import Unbuildable
from mmserve.kernels.native.library import native_library

try:
    native_library()
except Unbuildable as reason:
    pytest.skip(f"no native library: {reason}", allow_module_level=True)


def _store(num_groups: int, size: int, num_slots: int = NUM_SLOTS) -> KvTensors:
    generator = torch.Generator().manual_seed(size)
    shape = (2, num_groups, num_slots, size)
    return KvTensors(*(torch.randn(shape, generator=generator) for _ in range(2)))


def _queries(rows: list[QueryRow], num_heads: int, size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    num_tokens = sum(row.num_queries for row in rows)
    return torch.randn(num_tokens, num_heads, size, generator=generator)


def _expected(
    kv: KvTensors,
    rows: list[QueryRow],
    queries: torch.Tensor,
    window: int | None = None,
    softcap: float | None = None,
) -> torch.Tensor:
    """Softmax over each query's own slots, one query at a time, in double precision."""
    keys, values = kv.keys[1].double().numpy(), kv.values[1].double().numpy()
    _, num_heads, size = queries.shape
    asked = iter(queries.double().numpy())
    outputs = []
    for row in rows:
        for position in range(row.start, len(row.slots)):
            low, high = max(0, position + 1 - (window or position + 1)), position + 1
            for start, end in row.two_way:
                if start <= position < end:
                    high = end
            seen = row.slots[low:high]
            query = next(asked).reshape(len(keys), -1, size)
            scores = np.einsum("ghd,gld->ghl", query, keys[:, seen]) * size**-0.5
            if softcap:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            weights /= weights.sum(axis=-1, keepdims=True)
            out = np.einsum("ghl,gld->ghd", weights, values[:, seen])
            outputs.append(out.reshape(num_heads, size))
    return torch.from_numpy(np.array(outputs)).float()


def _check(kv: KvTensors, rows: list[QueryRow], num_heads: int, **options: float) -> None:
    queries = _queries(rows, num_heads, kv.keys.shape[-1])
    found = NativeAttention().plan(kv, rows, **options).attend(1, queries)
    expected = _expected(kv, rows, queries, **options)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def _mixed() -> list[QueryRow]:
    """Answers, extends and a prompt, some of them with a common beginning, slots anywhere."""
    slots = np.random.default_rng(0).permutation(NUM_SLOTS)
    shared = slots[:130]
    return [
        QueryRow(1, slots[:400]),
        QueryRow(30, np.concatenate([shared, slots[400:440]])),
        QueryRow(90, slots[500:590]),
        *(
            QueryRow(1, np.concatenate([shared, slots[600 + 9 * i : 609 + 9 * i]]))
            for i in range(40)
        ),
    ]


@settings(max_examples=25)
@given(
    step=steps(),
    heads=st.sampled_from([(3, 3), (6, 2), (7, 1)]),
    size=st.sampled_from([8, 24, 64]),
    softcap=st.sampled_from([None, 3.0]),
)
def test_trees_of_rows_are_read_right(
    step: Step, heads: tuple[int, int], size: int, softcap: float | None
) -> None:
    """Whatever rows share, with windows and bent scores, each query sees its own past."""
    kv = _store(heads[1], size)
    queries = _queries(step.rows, heads[0], size)
    plan = NativeAttention().plan(kv, step.rows, window=step.window, softcap=softcap)
    expected = _expected(kv, step.rows, queries, step.window, softcap)
    torch.testing.assert_close(plan.attend(1, queries), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("size", [8, 16, 20, 40, 64, 72, 80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (7, 1), (14, 2), (40, 1), (150, 1)])
def test_heads_of_any_size_and_number(size: int, heads: tuple[int, int]) -> None:
    """Sizes that fill no whole vectors, and any number of query heads a KV head."""
    _check(_store(heads[1], size), _mixed(), heads[0])


@pytest.mark.parametrize("window", [None, 1, 37])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_ranges_seen_both_ways(window: int | None, softcap: float | None) -> None:
    """A picture's tokens see each other ahead, through windows and bent scores."""
    slots = np.random.default_rng(1).permutation(NUM_SLOTS)
    rows = [
        QueryRow(200, slots[:260], ((70, 170), (200, 231))),
        QueryRow(5, slots[300:400], ((60, 98),)),
    ]
    _check(_store(3, 64), rows, 9, window=window, softcap=softcap)


@pytest.mark.parametrize("num_queries", [1, 70])
def test_a_long_context_is_cut_along_its_keys(num_queries: int) -> None:
    """Ranges of 5,000 keys are joined to what one range gives."""
    slots = np.random.default_rng(2).permutation(6000)[:5000]
    _check(_store(3, 64, 6000), [QueryRow(num_queries, slots)], 9)


def test_one_token_sees_itself() -> None:
    """The output of a first token is its value."""
    kv = _store(3, 64)
    out = (
        NativeAttention()
        .plan(kv, [QueryRow(1, np.array([7]))])
        .attend(0, torch.randn(1, 9, 64))
    )
    assert torch.equal(out.view(3, 3, 64), kv.values[0][:, 7, None].expand(3, 3, 64))


def test_a_step_without_queries_is_empty() -> None:
    """Rows that ask nothing get nothing."""
    plan = NativeAttention().plan(_store(2, 16), [QueryRow(0, np.arange(5))])
    assert plan.attend(0, torch.empty(0, 4, 16)).shape == (0, 4, 16)


def test_threads_do_not_change_a_bit() -> None:
    """One and two threads give the same outputs, cut along the keys or not."""
    kv, before = _store(3, 64), torch.get_num_threads()
    for rows in (_mixed(), [QueryRow(1, np.arange(1500))]):
        queries, found = _queries(rows, 9, 64), []
        plan = NativeAttention().plan(kv, rows)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(plan.attend(1, queries))
        torch.set_num_threads(before)
        assert torch.equal(*found)


def test_what_is_no_number_stays_with_its_row() -> None:
    """A key that is not a number is seen in the outputs of its row, and in no other."""
    rows = [QueryRow(1 + 5 * (i % 3), np.arange(i * 32, i * 32 + 20)) for i in range(6)]
    owner = np.repeat(np.arange(6), [row.num_queries for row in rows])
    kv, queries = _store(2, 16), _queries(rows, 4, 16)
    plan = NativeAttention().plan(kv, rows)
    before = plan.attend(0, queries)
    kv.keys[0][:, rows[4].slots] = torch.nan
    after = plan.attend(0, queries)
    assert after[owner == 4].isnan().all()
    assert torch.equal(after[owner != 4], before[owner != 4])


def test_queries_may_be_a_view() -> None:
    """Queries inside fused rows, or with heads turned over, are read where they lie."""
    kv, rows = _store(2, 16), [QueryRow(9, np.arange(30))]
    plan = NativeAttention().plan(kv, rows)
    fused = torch.randn(9, 8, 16)
    plain = plan.attend(0, fused[:, :4].contiguous())
    assert torch.equal(plan.attend(0, fused[:, :4]), plain)
    turned = fused[:, :4].transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(plan.attend(0, turned), plain)


def test_other_dtypes_are_refused() -> None:
    """Doubles are not misread."""
    kv = _store(2, 16)
    plan = NativeAttention().plan(kv, [QueryRow(1, np.arange(3))])
    with pytest.raises(TypeError, match="float32"):
        plan.attend(0, torch.zeros(1, 4, 16, dtype=torch.float64))


@pytest.mark.parametrize("num_tokens", [1, 40, 400])
@pytest.mark.parametrize("num_pairs", [None, 4, 12, 20])
def test_writers_agree(num_tokens: int, num_pairs: int | None) -> None:
    """Turned queries and the store are what the torch writer leaves."""
    slots = np.random.default_rng(3).permutation(NUM_SLOTS)[:num_tokens]
    ours, theirs = _store(3, 40), _store(3, 40)
    fused = torch.randn(num_tokens, 9 + 6, 40)
    turn = None
    if num_pairs is not None:
        angles = torch.rand(num_tokens, num_pairs) * 6
        turn = (angles.cos(), angles.sin())
    expected = TorchAttention().writer(theirs, slots).turn_and_write(1, fused.clone(), turn)
    found = NativeAttention().writer(ours, slots).turn_and_write(1, fused, turn)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-6, rtol=1e-6)
    assert torch.equal(ours.values, theirs.values)


def test_keys_and_values_are_stored_as_they_are() -> None:
    """Strided keys and values lie in their slots to the bit, and nothing else changes."""
    slots = np.random.default_rng(4).permutation(NUM_SLOTS)[:50]
    ours, theirs = _store(3, 24), _store(3, 24)
    fused = torch.randn(3, 50, 7, 24).transpose(0, 1)
    keys, values = fused[:, :, 2], fused[:, :, 5]
    NativeAttention().writer(ours, slots).write(1, keys, values)
    TorchAttention().writer(theirs, slots).write(1, keys, values)
    assert torch.equal(ours.keys, theirs.keys)
    assert torch.equal(ours.values, theirs.values)
