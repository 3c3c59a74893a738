"""What is asked of FlashInfer: index arithmetic against brute force, wrappers, fall-backs."""

from __future__ import annotations

import gc
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.flashinfer_double import library
from tensor.kernels.steps import NUM_SLOTS, Step, steps

from mmserve.kernels import KvTensors, QueryRow, TorchAttention
from mmserve.kernels.cuda_choice import choose_cuda_attention, why_not_flashinfer
from mmserve.kernels.flashinfer import FlashInferAttention, plan_batches, unsupported

CPU = torch.device("cpu")


class _Event:
    """An event that has passed as soon as a test says so."""

    has_passed = True

    def query(self) -> bool:
        return type(self).has_passed


class _Late(_Event):
    has_passed = False


def _store(size: int = 64, dtype: torch.dtype = torch.float16) -> KvTensors:
    generator = torch.Generator().manual_seed(size)
    shape = (2, NUM_SLOTS, 2, size)
    keys, values = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    return KvTensors(keys.transpose(1, 2), values.transpose(1, 2))


def _attention(event: type[_Event] = _Event) -> FlashInferAttention:
    return FlashInferAttention(TorchAttention(), library(), CPU, event)


def _seen(rows: list[QueryRow], window: int | None) -> Counter[tuple[int, int]]:
    """Every (query, slot) pair that a causal, windowed step reads, each once."""
    pairs: Counter[tuple[int, int]] = Counter()
    first = 0
    for row in rows:
        for i in range(row.num_queries):
            end = row.start + i + 1
            low = 0 if window is None else max(end - window, 0)
            pairs.update((first + i, int(slot)) for slot in row.slots[low:end])
        first += row.num_queries
    return pairs


def _asked(rows: list[QueryRow], window: int | None) -> Counter[tuple[int, int]]:
    """Every pair that the batches read, as the wrappers' documentation says it."""
    pairs: Counter[tuple[int, int]] = Counter()
    for batch in plan_batches(rows, window):
        for r in range(len(batch.query_bounds) - 1):
            queries = batch.queries[batch.query_bounds[r] : batch.query_bounds[r + 1]]
            slots = batch.slots[batch.slot_bounds[r] : batch.slot_bounds[r + 1]]
            for i, query in enumerate(queries):
                own = len(slots) - len(queries) + i
                end = own + 1 if batch.is_causal else len(slots)
                low = max(end - batch.window, 0) if batch.window else 0
                pairs.update((int(query), int(slot)) for slot in slots[low:end])
    return pairs


@settings(max_examples=80, deadline=None)
@given(step=steps())
def test_every_pair_is_read_once(step: Step) -> None:
    """Each query reads each slot it sees in exactly one request, and no other slot."""
    assert _asked(step.rows, step.window) == _seen(step.rows, step.window)


@settings(max_examples=60, deadline=None)
@given(step=steps())
def test_a_query_stands_once_in_a_batch(step: Step) -> None:
    """So that the outputs of a call can be put back without adding."""
    for batch in plan_batches(step.rows, step.window):
        assert len(np.unique(batch.queries)) == len(batch.queries)
        assert batch.query_bounds[-1] == len(batch.queries)
        assert batch.slot_bounds[-1] == len(batch.slots)
        assert batch.slots.dtype == batch.query_bounds.dtype == np.int32


def test_a_shared_prefix_is_one_request() -> None:
    """Eight questions on one picture read its 576 slots in one request."""
    picture = np.arange(576)
    rows = [
        QueryRow(1, np.concatenate([picture, 600 + 40 * i + np.arange(20 + i)]))
        for i in range(8)
    ]
    batches = plan_batches(rows)
    assert [batch.is_causal for batch in batches] == [False, False]
    assert batches[0].query_bounds.tolist() == [0, 8]
    assert batches[0].slots.tolist() == picture.tolist()
    assert batches[1].is_decode
    assert np.diff(batches[1].slot_bounds).tolist() == [20 + i for i in range(8)]


def test_a_lone_prompt_is_one_causal_call() -> None:
    """Its last query, which sees all of it, is not told apart."""
    (batch,) = plan_batches([QueryRow(30, np.arange(100))])
    assert (batch.is_causal, batch.queries.tolist()) == (True, list(range(30)))


@settings(max_examples=40, deadline=None)
@given(step=steps(), softcap=st.sampled_from([None, 5.0]), heads=st.sampled_from([2, 4, 8]))
def test_attention_equals_the_plain_backend(
    step: Step, softcap: float | None, heads: int
) -> None:
    """Through the documented wrappers every output is that of the torch backend."""
    kv = _store()
    num_tokens = sum(row.num_queries for row in step.rows)
    queries = torch.randn(num_tokens, heads, 64).half()
    options = {"window": step.window, "softcap": softcap}
    got = _attention().plan(kv, step.rows, **options).attend(1, queries)
    wide = KvTensors(kv.keys.float(), kv.values.float())
    plain = TorchAttention().plan(wide, step.rows, **options).attend(1, queries.float())
    assert got.dtype == torch.float16
    torch.testing.assert_close(got.float(), plain, atol=4e-3, rtol=4e-3)


def test_a_plan_serves_every_layer_with_one_schedule() -> None:
    """Wrappers are planned at the first layer and only run at the others."""
    attention, kv = _attention(), _store()
    plan = attention.plan(kv, [QueryRow(3, np.arange(9))])
    queries = torch.randn(3, 4, 64).half()
    first, second = (plan.attend(layer, queries) for layer in (0, 1))
    assert not torch.equal(first, second)
    assert [wrapper.num_plans for wrapper in attention._library.made] == [1]


def test_wrappers_come_back_with_the_plan() -> None:
    """A second step uses the wrapper of the first, a third beside it gets its own."""
    attention, kv = _attention(), _store()
    queries = torch.randn(3, 4, 64).half()

    def begin():
        plan = attention.plan(kv, [QueryRow(3, np.arange(9))])
        plan.attend(0, queries)
        return plan

    plan = begin()
    del plan
    gc.collect()
    plan = begin()
    other = begin()
    assert len(attention._library.made) == 2
    assert plan is not other


def test_a_wrapper_whose_copy_is_under_way_is_left_alone() -> None:
    """Its page-locked schedule would be written while the device reads it."""
    attention, kv = _attention(_Late), _store()
    for _ in range(3):
        plan = attention.plan(kv, [QueryRow(3, np.arange(9))])
        plan.attend(0, torch.randn(3, 4, 64).half())
        del plan
        gc.collect()
    assert len(attention._library.made) == 3


@pytest.mark.parametrize(
    ("kv", "row"),
    [
        (_store(80), QueryRow(3, np.arange(9))),
        (_store(64, torch.float32), QueryRow(3, np.arange(9))),
        (_store(), QueryRow(3, np.arange(9), ((6, 8),))),
    ],
)
def test_what_it_cannot_do_goes_to_the_fall_back(kv: KvTensors, row: QueryRow) -> None:
    """Other heads, other types and two-way spans never reach FlashInfer."""
    attention = _attention()
    queries = torch.randn(3, 4, kv.keys.shape[-1]).to(kv.keys.dtype)
    got = attention.plan(kv, [row]).attend(0, queries)
    assert torch.equal(got, TorchAttention().plan(kv, [row]).attend(0, queries))
    assert attention._library.made == []


def test_reasons_say_what_is_missing() -> None:
    """Head sizes and types by name; nothing is said of what works."""
    assert unsupported(64, torch.bfloat16) is None
    assert unsupported(80, torch.bfloat16) == "heads are of 80, its kernels are of 64, 128, 256"
    reason = unsupported(128, torch.float32)
    assert reason == "KV is float32, its kernels are of float16 and bfloat16"


def test_the_choice_tells_why_not() -> None:
    """Without a CUDA device, or without the package, the fall-back attends, with a note."""
    fallback = TorchAttention()
    chosen = choose_cuda_attention(CPU, torch.float16, fallback)
    assert chosen.attention is fallback
    assert chosen.notes == (
        "triton attends, flashinfer is not used: the device is no CUDA device",
    )


def test_the_choice_asks_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Package, type, card and compiler are looked for one after another."""
    cuda = torch.device("cuda")
    found = {"flashinfer": None, "flashinfer_jit_cache": None}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found[name])
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.7.4")
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: False)
    reasons = [why_not_flashinfer(cuda, torch.float16)]
    found["flashinfer"] = object()
    reasons.append(why_not_flashinfer(cuda, torch.float32))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (7, 5))
    reasons.append(why_not_flashinfer(cuda, torch.float16))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda device: (9, 0))
    reasons.append(why_not_flashinfer(cuda, torch.float16))
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvcc")
    reasons.append(why_not_flashinfer(cuda, torch.float16))
    assert [reason and reason.split(",")[0] for reason in reasons] == [
        "it is not installed (pip install mmserve[cuda])",
        "KV is float32",
        "the device is older than compute capability 8.0",
        "its kernels are compiled at their first use",
        None,
    ]
