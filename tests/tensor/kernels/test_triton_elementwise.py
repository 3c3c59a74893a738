"""Norms, gates, KV writes and feature scatters in Triton, against torch and float64.

bfloat16 is left out: the interpreter truncates where a GPU rounds; `test_triton_builds`
compiles it.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from support.interpreting import computed_by, hasten

from mmserve.kernels import (
    KvTensors,
    TorchOps,
    gelu_and_mul,
    rms_norm,
    rotary,
    silu_and_mul,
)
from mmserve.kernels.attention_torch import TorchKvWriter

pytestmark = pytest.mark.slow

DTYPES = {"float32": torch.float32, "float16": torch.float16}
MOST = {"float32": 1e-5, "float16": 1e-3}
"""Relative norm of the difference to float64; a rounding of float16 is 5e-4 at most."""
SHAPES = [(0, 8), (1, 1), (1, 576), (5, 33), (3, 1500)]
HEADS = {
    "plain": (5, 4, 2, 16, 8),
    "one": (1, 1, 1, 8, 4),
    "none": (0, 2, 1, 8, 4),
    "part": (3, 3, 1, 12, 3),
    "odd": (7, 9, 3, 20, 10),
    "grid": (6, 6, 2, 32, 16),
    "unturned": (4, 3, 1, 24, 0),
}
"""Tokens, heads, KV heads, head size, pairs that turn."""
NUM_SLOTS = 24


def _random(*shape: int, seed: int, dtype: str) -> torch.Tensor:
    maker = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=maker).to(DTYPES[dtype])


def _error(found: Any, expected: torch.Tensor, dtype: str) -> float:
    """Relative norm of the difference to float64; exact zeros if there is nothing."""
    values = torch.tensor(found, dtype=torch.float64).view(expected.shape)
    size = float(expected.norm())
    return float((values - expected).norm()) / size if size else float(values.norm())


def _store(dtype: str, groups: int, size: int, *, by_slot: bool) -> KvTensors:
    """Two layers of -1, laid out by slots or by heads."""
    shape = (2, 2, NUM_SLOTS, groups, size) if by_slot else (2, 2, groups, NUM_SLOTS, size)
    both = torch.full(shape, -1.0, dtype=DTYPES[dtype])
    if by_slot:
        both = both.transpose(2, 3)
    return KvTensors(both[0], both[1])


def _step(
    name: str, dtype: str
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor] | None]:
    """Fused projections and turns; `grid` takes each pair's angle from one of three axes."""
    num_tokens, heads, groups, size, pairs = HEADS[name]
    fused = _random(num_tokens, heads + 2 * groups, size, seed=len(name), dtype=dtype)
    if not pairs:
        return fused, None
    frequencies = 10000.0 ** -(torch.arange(pairs) / pairs)
    positions = torch.arange(num_tokens)[:, None] * 37.0
    if name == "grid":
        axes = torch.tensor([0, 1, 2, 1] * (pairs // 4))
        positions = (torch.arange(3 * num_tokens) * 29 % 97).view(3, -1).float()[axes].T
    angles = positions * frequencies
    return fused, (angles.cos().to(fused.dtype), angles.sin().to(fused.dtype))


def _slots(name: str) -> np.ndarray:
    return np.random.default_rng(len(name)).permutation(NUM_SLOTS)[: HEADS[name][0]]


@cache
def _computed() -> dict[str, Any]:
    found: dict[str, Any] = computed_by(__file__)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_norm_equals_its_twin(shape: tuple[int, int], dtype: str) -> None:
    """Rows of any number and width, also none, are normed as in float64."""
    hidden = _random(*shape, seed=1, dtype=dtype)
    gain = _random(shape[1], seed=2, dtype=dtype)
    expected = rms_norm(hidden.double(), gain.double(), 1e-5)
    assert _error(_computed()[f"norm {shape} {dtype}"], expected, dtype) < MOST[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_of_heads_reads_them_in_place(dtype: str) -> None:
    """Heads of a fused projection are normed one by one, with a float32 gain."""
    fused, gain = _random(4, 7, 20, seed=3, dtype=dtype), _random(20, seed=4, dtype="float32")
    expected = rms_norm(fused[:, 1:5].double(), gain.double(), 1e-3)
    assert _error(_computed()[f"heads {dtype}"], expected, dtype) < MOST[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_add_norm_equals_its_twin(shape: tuple[int, int], dtype: str) -> None:
    """The sum is left in the hidden states, and its norm is given."""
    hidden, delta = (_random(*shape, seed=seed, dtype=dtype) for seed in (5, 6))
    gain = _random(shape[1], seed=2, dtype=dtype)
    total = hidden + delta
    found = _computed()[f"add norm {shape} {dtype}"]
    assert _error(found["hidden"], total.double(), dtype) == 0
    expected = rms_norm(total.double(), gain.double(), 1e-5)
    assert _error(found["normed"], expected, dtype) < MOST[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ["silu", "gelu_pytorch_tanh"])
def test_gates_equal_their_twins(name: str, shape: tuple[int, int], dtype: str) -> None:
    """Both activations, of widths that are no power of two and of more than one program."""
    gate_up = _random(shape[0], 2 * shape[1], seed=7, dtype=dtype) * 3
    twin = {"silu": silu_and_mul, "gelu_pytorch_tanh": gelu_and_mul}[name]
    expected = twin(gate_up.double())
    assert _error(_computed()[f"{name} {shape} {dtype}"], expected, dtype) < MOST[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by_slot", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_queries_turn_and_kv_lies_in_its_slots(name: str, by_slot: bool, dtype: str) -> None:
    """Heads turn by their angles; the layer's slots are written and no others."""
    heads, groups, size = HEADS[name][1:4]
    fused, turn = _step(name, dtype)
    wide = fused.double()
    turned, values = wide.split([heads + groups, groups], dim=1)
    if turn is not None:
        turned = rotary(turned, turn[0].double(), turn[1].double())
    kv = _store(dtype, groups, size, by_slot=by_slot)
    expected = KvTensors(kv.keys.double(), kv.values.double())
    if len(wide):
        TorchKvWriter(expected, _slots(name)).write(1, turned[:, heads:], values)
    found = _computed()[f"turn {name} {by_slot} {dtype}"]
    assert _error(found["queries"], turned[:, :heads], dtype) < MOST[dtype]
    assert _error(found["keys"], expected.keys, dtype) < MOST[dtype]
    assert _error(found["values"], expected.values, dtype) == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_token_without_a_slot_is_not_written(dtype: str) -> None:
    """Padding of a captured step has slot -1 and leaves the store as it is."""
    found = torch.tensor(_computed()[f"padding {dtype}"])
    assert (found[..., 3, :] != -1).all()
    others = [slot for slot in range(NUM_SLOTS) if slot != 3]
    assert (found[..., others, :] == -1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_deep", [0, 2])
def test_features_replace_embeddings(num_deep: int, dtype: str) -> None:
    """Pictures' rows stand where their tokens are, deep sets in order, all else untouched."""
    hidden, features, starts = _pictures(num_deep, dtype)
    twin, before = hidden.clone(), hidden.clone()
    told = TorchOps().place(twin, features, starts, num_deep)
    width = hidden.shape[1]
    deep = torch.zeros(num_deep, *hidden.shape, dtype=hidden.dtype)
    for start, each in zip(starts, features, strict=True):
        hidden[start : start + len(each)] = each[:, :width]
        for number in range(num_deep):
            own = each[:, (number + 1) * width : (number + 2) * width]
            deep[number, start : start + len(each)] = own
    found = _computed()[f"features {num_deep} {dtype}"]
    assert found["hidden"] == hidden.tolist() == twin.tolist() != before.tolist()
    assert found["deep"] == (deep.tolist() if num_deep else None)
    assert (told is None) if num_deep == 0 else torch.equal(told, deep)


def _pictures(
    num_deep: int, dtype: str
) -> tuple[torch.Tensor, list[torch.Tensor], tuple[int, ...]]:
    """Embeddings and three pictures, one of them empty and one a part of a larger tensor."""
    width = 10
    hidden = _random(12, width, seed=8, dtype=dtype)
    whole = _random(6, width * (1 + num_deep), seed=9, dtype=dtype)
    return hidden, [whole[2:5], whole[:0], whole[5:]], (1, 4, 9)


def _main() -> None:
    """Compute everything and print it."""
    hasten()
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        _compute_rows(found, dtype)
        for name in HEADS:
            for by_slot in (True, False):
                found[f"turn {name} {by_slot} {dtype}"] = _turned(name, dtype, by_slot=by_slot)
        found[f"padding {dtype}"] = _padded(dtype)
        for num_deep in (0, 2):
            found[f"features {num_deep} {dtype}"] = _placed(num_deep, dtype)
    print(json.dumps(found))  # noqa: T201 - to the parent


def _compute_rows(found: dict[str, Any], dtype: str) -> None:
    """Norms and gates. Changes: `found`."""
    from mmserve.kernels.triton.ops import TritonOps  # noqa: PLC0415 - as above

    ops = TritonOps()
    for shape in SHAPES:
        hidden, gain = (
            _random(*shape, seed=1, dtype=dtype),
            _random(shape[1], seed=2, dtype=dtype),
        )
        found[f"norm {shape} {dtype}"] = ops.norm(hidden, gain, 1e-5).tolist()
        hidden, delta = (_random(*shape, seed=seed, dtype=dtype) for seed in (5, 6))
        normed = ops.add_norm(hidden, delta, gain, 1e-5)
        both = {"hidden": hidden.tolist(), "normed": normed.tolist()}
        found[f"add norm {shape} {dtype}"] = both
        gate_up = _random(shape[0], 2 * shape[1], seed=7, dtype=dtype) * 3
        for name in ("silu", "gelu_pytorch_tanh"):
            found[f"{name} {shape} {dtype}"] = ops.gate(name, gate_up).tolist()
    fused, gain = _random(4, 7, 20, seed=3, dtype=dtype), _random(20, seed=4, dtype="float32")
    found[f"heads {dtype}"] = ops.norm(fused[:, 1:5], gain, 1e-3).tolist()


def _turned(name: str, dtype: str, *, by_slot: bool) -> dict[str, Any]:
    from mmserve.kernels.triton.writer import TritonKvWriter  # noqa: PLC0415 - as above

    groups, size = HEADS[name][2:4]
    kv = _store(dtype, groups, size, by_slot=by_slot)
    fused, turn = _step(name, dtype)
    queries = TritonKvWriter(kv, _slots(name)).turn_and_write(1, fused, turn)
    return {
        "queries": queries.tolist(),
        "keys": kv.keys.tolist(),
        "values": kv.values.tolist(),
    }


def _padded(dtype: str) -> list[Any]:
    """Keys of one layer after two tokens of which one has no slot, by both ways to write."""
    from mmserve.kernels.triton.writer import TritonKvWriter  # noqa: PLC0415 - as above

    fused = _random(2, 4, 8, seed=1, dtype=dtype)
    turn = (torch.ones(2, 4, dtype=fused.dtype), torch.zeros(2, 4, dtype=fused.dtype))
    stores = []
    for each in (turn, None):
        kv = _store(dtype, 1, 8, by_slot=True)
        writer = TritonKvWriter(kv, np.array([3, -1]))
        writer.turn_and_write(0, fused.clone(), each)
        stores += [kv.keys[0].tolist(), kv.values[0].tolist()]
    return stores


def _placed(num_deep: int, dtype: str) -> dict[str, Any]:
    from mmserve.kernels.triton.features import place_features  # noqa: PLC0415 - as above

    hidden, features, starts = _pictures(num_deep, dtype)
    deep = place_features(hidden, features, starts, num_deep)
    return {"hidden": hidden.tolist(), "deep": None if deep is None else deep.tolist()}


if __name__ == "__main__":
    _main()
