"""Attention in Triton under its interpreter, against float64 and against its torch twin.

The interpreter must be asked for before Triton is imported, so one child process computes all
cases (`python test_triton_attention.py`) and the tests judge what it prints. bfloat16 is left
out: the interpreter multiplies its bits as integers; `test_triton_builds` compiles it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.interpreting import computed_by, hasten

from mmserve.kernels import KvTensors, QueryRow, TorchAttention
from mmserve.kernels.reading import plan_reading
from mmserve.kernels.triton.items import Division, apart, step_items
from mmserve.kernels.triton.tables import AttentionTiles, Tile

NUM_SLOTS = 420
TILES = AttentionTiles(Tile(16, 16, 4, 2, 32, 1), Tile(32, 16, 4, 2, 32, 1))
"""Small ones, so that short rows have several tiles, blocks and pieces."""


@dataclass(frozen=True, slots=True)
class Case:
    """One random step and how it is computed."""

    heads: int
    size: int
    dtype: str
    window: int | None = None
    softcap: float | None = None
    is_two_way: bool = False
    num_groups: int = 1

    @property
    def name(self) -> str:
        """What the test is called."""
        words = [f"{self.heads}x{self.size}", self.dtype]
        words += [f"window{self.window}"] if self.window else []
        words += ["softcap"] if self.softcap else []
        words += ["two-way"] if self.is_two_way else []
        return "-".join(words)


CASES = (
    Case(1, 64, "float32"),
    Case(3, 64, "float32", num_groups=2),
    Case(4, 64, "float32", window=9),
    Case(7, 64, "float32", is_two_way=True),
    Case(1, 80, "float32", window=20, softcap=2.0),
    Case(3, 80, "float32", is_two_way=True, window=9),
    Case(4, 128, "float32", softcap=2.0, num_groups=2),
    Case(7, 128, "float32", window=1),
    Case(24, 64, "float32"),
    Case(1, 128, "float16", num_groups=2),
    Case(3, 72, "float16", softcap=20.0),
    Case(4, 64, "float16", is_two_way=True, num_groups=2),
    Case(7, 80, "float16", window=9),
    Case(4, 256, "float16"),
)
BY_NAME = {case.name: case for case in CASES}


def _rows(
    chance: np.random.Generator, *, is_two_way: bool, most_queries: int = 40
) -> list[QueryRow]:
    """Rows that branch off from each other, of no, one or many queries; slots lie anywhere."""
    page = int(chance.choice([1, 4, NUM_SLOTS]))
    free = chance.permutation(np.arange(NUM_SLOTS).reshape(-1, page)).ravel()
    rows: list[QueryRow] = []
    taken = 0
    while taken < NUM_SLOTS - 60 and len(rows) < 7:
        parent = rows[int(chance.integers(len(rows)))].slots if rows else free[:0]
        kept = (
            parent[: int(chance.integers(len(parent) + 1))] if chance.random() < 0.5 else parent
        )
        num_new = int(chance.choice([1, 2, 17, 32, 60]))
        slots = np.concatenate([kept, free[taken : taken + num_new]])
        taken += num_new
        num_queries = min(int(chance.choice([0, 1, 1, 5, num_new])), num_new, most_queries)
        start = len(slots) - num_queries
        spans = ((start, min(start + 6, len(slots))),) if is_two_way and num_queries else ()
        rows.append(QueryRow(num_queries, slots, spans))
    return rows


def _store(
    chance: np.random.Generator, case: Case, rows: Sequence[QueryRow], *, is_by_slot: bool
) -> KvTensors:
    """KV of two layers, not a number where no row looks; by slot (as on a GPU) or by head."""
    shape = (2, NUM_SLOTS, case.num_groups, case.size)
    used = np.unique(np.concatenate([row.slots for row in rows]))
    tensors = []
    for _ in range(2):
        numbers = np.full(shape, np.nan)
        numbers[:, used] = chance.standard_normal((2, len(used), *shape[2:]))
        tensor = torch.from_numpy(numbers).to(getattr(torch, case.dtype)).transpose(1, 2)
        tensors.append(tensor if is_by_slot else tensor.contiguous())
    return KvTensors(*tensors)


def _queries(chance: np.random.Generator, case: Case, num_tokens: int) -> torch.Tensor:
    """Queries [T, H, D] as a view of a wider tensor, as of a fused product."""
    num_heads = case.heads * case.num_groups
    wide = chance.standard_normal((num_tokens, num_heads + 2 * case.num_groups, case.size))
    return torch.from_numpy(wide).to(getattr(torch, case.dtype))[:, :num_heads]


def _naive(
    kv: KvTensors, rows: Sequence[QueryRow], queries: torch.Tensor, case: Case
) -> torch.Tensor:
    """Each query alone in float64 on the slots that it sees, one head after the other."""
    out = torch.zeros(queries.shape, dtype=torch.float64)
    token = 0
    for row in rows:
        for position in range(row.start, len(row.slots)):
            seen = set(range(position + 1))
            if case.window:
                seen = {p for p in seen if p > position - case.window}
            for start, end in row.two_way:
                seen |= set(range(start, end)) if start <= position < end else set()
            slots = row.slots[sorted(seen)]
            for head in range(queries.shape[1]):
                keys = kv.keys[1, head // case.heads, slots].double()
                values = kv.values[1, head // case.heads, slots].double()
                scores = keys @ queries[token, head].double() * case.size**-0.5
                if case.softcap:
                    scores = case.softcap * torch.tanh(scores / case.softcap)
                out[token, head] = torch.softmax(scores, 0) @ values
            token += 1
    return out


def _compute(case: Case, seed: int) -> dict[str, float]:
    """Errors of one case: the largest, that of the norm, and both of the twin."""
    from mmserve.kernels.triton.attention import TritonAttention  # noqa: PLC0415

    chance = np.random.default_rng(seed)
    rows = _rows(chance, is_two_way=case.is_two_way)
    kv = _store(chance, case, rows, is_by_slot=bool(seed % 2))
    queries = _queries(chance, case, sum(row.num_queries for row in rows))
    exact = _naive(kv, rows, queries, case)
    attention = TritonAttention(tiles=TILES, num_processors=4)
    rules = {"window": case.window, "softcap": case.softcap}
    found = attention.plan(kv, rows, **rules).attend(1, queries).double()
    twin = TorchAttention().plan(kv, rows, **rules).attend(1, queries).double()
    return {
        "num_queries": len(queries),
        "error": (found - exact).abs().max().item(),
        "relative": ((found - exact).norm() / exact.norm()).item(),
        "twin_relative": ((twin - exact).norm() / exact.norm()).item(),
        "from_twin": (found - twin).abs().max().item(),
    }


def _compute_decode() -> dict[str, Any]:
    """A decode plan over several steps, beside plans of each step; then one without sharing."""
    from mmserve.kernels.triton.attention import DecodeCapacity, TritonAttention  # noqa: PLC0415

    case = Case(4, 64, "float32", window=30, num_groups=2)
    chance = np.random.default_rng(5)
    rows = [row for row in _rows(chance, is_two_way=False) for _ in range(2)]
    kv = _store(chance, case, rows, is_by_slot=True)
    queries = _queries(chance, case, 16)
    attention = TritonAttention(tiles=TILES, num_processors=4)
    longest = max(len(row.slots) for row in rows)
    plan = attention.decode_plan(kv, DecodeCapacity(16, longest), 8, window=30)
    before = plan.attend(1, queries).abs().max().item()
    errors, rests = [], []
    for num_rows in (14, 1, 0, 9):
        chosen = [
            QueryRow(1, row.slots) for row in chance.permutation(np.array(rows))[:num_rows]
        ]
        plan.update(chosen)
        found = plan.attend(1, queries)
        wanted = attention.plan(kv, chosen, window=30).attend(1, queries[:num_rows])
        errors.append((found[:num_rows] - wanted).abs().max().item() if num_rows else 0.0)
        rests.append(found[num_rows:].abs().max().item())
    return {
        "before": before,
        "errors": errors,
        "rests": rests,
        "refused": _refused(plan),
        "chain": _compute_chain(),
    }


def _compute_chain() -> float:
    """Error of a decode plan whose rows share so much that their items exceed its room.

    Each of 26 rows goes 16 slots beyond the row before: up to 26 segments a row.
    """
    from mmserve.kernels.triton.attention import DecodeCapacity, TritonAttention  # noqa: PLC0415

    case = Case(4, 64, "float32")
    chance = np.random.default_rng(6)
    rows = [QueryRow(1, np.arange(16 * (i + 1))) for i in range(26)]
    kv = _store(chance, case, rows, is_by_slot=True)
    queries = _queries(chance, case, len(rows))
    attention = TritonAttention(tiles=TILES, num_processors=4)
    plan = attention.decode_plan(kv, DecodeCapacity(26, 416), 4)
    plan.update(rows)
    found = plan.attend(1, queries).double()
    return (found - _naive(kv, rows, queries, case)).abs().max().item()


def _refused(plan: Any) -> list[str]:
    """What a decode plan says of rows that it has no room for."""
    said = []
    many, few = np.arange(plan.capacity.num_slots + 1), np.arange(5)
    for rows in ([QueryRow(1, many)], [QueryRow(1, few)] * 17, [QueryRow(2, few)]):
        try:
            plan.update(rows)
        except ValueError as error:
            said.append(str(error))
    return said


def _main() -> None:
    hasten()
    cases = {case.name: _compute(case, seed) for seed, case in enumerate(CASES)}
    print(json.dumps({"cases": cases, "decode": _compute_decode()}))  # noqa: T201


@cache
def _computed() -> dict[str, Any]:
    """What the child process found; it starts once."""
    found: dict[str, Any] = computed_by(__file__)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if BY_NAME[name].dtype == "float32"])
def test_single_precision_equals_float64_and_the_twin(name: str) -> None:
    """In float32 every output is within 1e-5 of naive float64 attention and of torch's."""
    found = _computed()["cases"][name]
    assert found["num_queries"] > 0
    assert found["error"] < 1e-5
    assert found["from_twin"] < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in BY_NAME if BY_NAME[name].dtype == "float16"])
def test_half_precision_is_as_near_to_float64_as_the_twin(name: str) -> None:
    """In float16 the norm of the error is that of rounding, and no larger than torch's."""
    found = _computed()["cases"][name]
    assert found["num_queries"] > 0
    assert found["relative"] < 6e-4
    assert found["relative"] < 1.2 * found["twin_relative"]


@pytest.mark.slow
def test_a_decode_plan_equals_plans_of_its_steps() -> None:
    """Updated in place to more, fewer and no rows, it gives what new plans give, and else 0."""
    found = _computed()["decode"]
    assert found["before"] == 0.0
    assert max(found["errors"]) < 2e-6
    assert found["rests"] == [0.0] * 4


@pytest.mark.slow
def test_rows_that_share_too_much_are_read_one_by_one() -> None:
    """A decode plan without room for the items of the shared reading is as exact as ever."""
    assert _computed()["decode"]["chain"] < 1e-5


@pytest.mark.slow
def test_a_decode_plan_refuses_what_it_has_no_room_for() -> None:
    """A row that is too long, a row too many, and a row of two queries."""
    assert len(_computed()["decode"]["refused"]) == 3


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    heads=st.sampled_from([1, 3, 4, 7]),
    window=st.sampled_from([None, None, 1, 9, 40]),
    is_two_way=st.booleans(),
    is_apart=st.booleans(),
)
def test_items_read_every_seen_slot_once(
    seed: int, heads: int, window: int | None, is_two_way: bool, is_apart: bool
) -> None:
    """Over all items, each query meets exactly the slots that it sees, once; runs are runs.

    What an item says to be seen by all its queries is.
    """
    rows = _rows(np.random.default_rng(seed), is_two_way=is_two_way)
    reading = apart(rows, window) if is_apart else plan_reading(rows, window)
    items = step_items(reading, Division(heads, 2, TILES, 4))
    met: list[list[int]] = [[] for _ in reading.order]
    for item in np.concatenate([items.narrow, items.wide]).tolist():
        first, num_places, at, length, position, head, full, run, _ = item
        slots = items.slots[at : at + length]
        assert run == (slots[0] if (np.diff(slots) == 1).all() else -1)
        positions = np.arange(position, position + length)
        for place in range(first, first + num_places):
            seen = (positions >= items.low[place]) & (positions < items.high[place])
            assert seen[head : head + full].all()
            met[place] += slots[seen].tolist()
    owners = [row for row in rows for _ in range(row.num_queries)]
    for place, token in enumerate(items.order):
        low, high = items.low[place], items.high[place]
        assert met[place] == owners[token].slots[low:high].tolist() or sorted(
            met[place]
        ) == sorted(owners[token].slots[low:high].tolist())


def test_a_shared_beginning_is_read_once() -> None:
    """Rows that share 200 slots meet them in items of all rows, not in items of each."""
    shared = np.arange(200)
    rows = [QueryRow(1, np.append(shared, 300 + i)) for i in range(8)]
    items = step_items(plan_reading(rows), Division(4, 1, TILES, 1))
    assert sum(items.wide[:, 3].tolist()) == 200
    assert sum(items.narrow[:, 3].tolist()) == 8


def test_a_long_row_is_cut_for_all_processors() -> None:
    """One query on a long row becomes as many items as processors for each KV head."""
    items = step_items(plan_reading([QueryRow(1, np.arange(4096))]), Division(4, 2, TILES, 16))
    assert items.narrow[:, 3].tolist() == [512] * 8
    assert items.joins.tolist() == [[0, 0, 8]]


if __name__ == "__main__":
    _main()
