"""Launch and finish, staging, graphs and sizes, as far as a CPU can prove them."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from support.checkpoints import IMAGE_TOKEN_ID, tiny_llama, tiny_llava
from support.steps import GREEDY, Driver, encode_item, load

from mmserve.core import (
    EncodeItem,
    FeatureUse,
    ForwardPlan,
    ModelRefused,
    RunnerFailed,
    SamplingParams,
)
from mmserve.kernels import KvTensors, QueryRow, TorchAttention
from mmserve.kernels.attention_torch import TorchKvWriter
from mmserve.runner import TorchRunner
from mmserve.runner.graphs import (
    GRAPH_SIZES,
    NO_SLOT,
    DecodeGraphs,
    decode_inputs,
    is_decode,
    padding,
    size_for,
)
from mmserve.runner.kv_store import by_slot
from mmserve.runner.memory import Budget, check_room, num_slots
from mmserve.runner.sizing import probe_plan
from mmserve.runner.staging import DirectStaging, PinnedStaging

CPU = torch.device("cpu")
_IDS = [1, 40, 50, 60, 70, 80, 90, 100]


# --- launch and finish -----------------------------------------------------------------------


def _plans(driver: Driver, num: int = 4, params: SamplingParams = GREEDY) -> list[ForwardPlan]:
    """A prompt, then steps of one given token."""
    slots = driver.new_slots(len(_IDS) + num)
    plans = [ForwardPlan(1, (driver.row(_IDS, slots, params=params),))]
    known = list(_IDS)
    for step in range(2, num + 1):
        known.append(30 + step)
        row = driver.row(known, slots, len(known) - 1, params=params)
        plans.append(ForwardPlan(step, (row,)))
    return plans


def _same(left: object, right: object) -> bool:
    pairs = [[(r.token_id, r.logprob, r.top) for r in side.rows] for side in (left, right)]
    return pairs[0] == pairs[1]


def test_finishing_one_behind_equals_executing() -> None:
    """Steps launched before the one before is finished give the same answers, in order."""
    driver = Driver(load(tiny_llama()))
    runner = driver.loaded.runner
    plans = _plans(driver)
    expected = [runner.execute(plan) for plan in plans]
    under_way, got = [], []
    for plan in plans:
        under_way.append(runner.launch(plan))
        if len(under_way) == 2:
            got.append(under_way.pop(0).finish())
    got.append(under_way.pop().finish())
    assert [one.step for one in got] == [1, 2, 3, 4]
    assert all(_same(left, right) for left, right in zip(got, expected, strict=True))


def test_a_launch_that_fails_leaves_the_step_before_alone() -> None:
    """The step under way still gives its answer, and the next one runs."""
    driver = Driver(load(tiny_llava()))
    runner = driver.loaded.runner
    plans = _plans(driver)
    expected = [runner.execute(plan) for plan in plans[:2]]
    first = runner.launch(plans[0])
    bad = EncodeItem(bytes(16), {"pixel_values": np.zeros((3, 55, 56), dtype=np.float32)})
    with pytest.raises(RunnerFailed) as caught:
        runner.launch(ForwardPlan(9, (), (bad,)))
    second = runner.launch(plans[1])
    assert caught.value.fields == {"step": 9}
    assert _same(first.finish(), expected[0])
    assert _same(second.finish(), expected[1])


def test_masks_are_asked_for_at_the_launch() -> None:
    """Once, and before the step is finished."""
    driver = Driver(load(tiny_llama()))
    calls: list[int] = []

    class Masks:
        def fill(self):
            calls.append(1)
            words = np.zeros(10, dtype=np.uint32)
            words[1] = 1 << 3
            return {0: words}

    row = driver.row(_IDS, driver.new_slots(8))
    pending = driver.loaded.runner.launch(ForwardPlan(1, (row,), masks=Masks()))
    assert calls == [1]
    assert pending.finish().rows[0].token_id == 35
    assert calls == [1]


def test_a_draw_that_fails_late_fails_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What reading the device raises becomes the one error that the seam promises."""
    driver = Driver(load(tiny_llama()))
    runner = driver.loaded.runner
    assert isinstance(runner, TorchRunner)
    plans = _plans(driver)

    class Broken:
        def read(self):
            raise RuntimeError("device-side assert")

    with monkeypatch.context() as patch:
        patch.setattr(type(runner._ops), "draw", lambda *_: Broken())
        pending = runner.launch(plans[0])
        with pytest.raises(RunnerFailed) as caught:
            pending.finish()
    assert caught.value.fields == {"step": 1}
    assert runner.execute(plans[0]).rows[0].token_id is not None


# --- staging ---------------------------------------------------------------------------------


@settings(max_examples=30)
@given(sizes=st.lists(st.lists(st.integers(0, 9000), max_size=4), min_size=1, max_size=7))
def test_staged_arrays_arrive_as_they_were(sizes: list[list[int]]) -> None:
    """Whatever their number and sizes, step after step, also where a buffer has to grow."""
    rng = np.random.default_rng(0)
    staging = PinnedStaging(CPU)
    for step in sizes:
        arrays = [rng.integers(-9, 9, size) for size in step]
        arrays.append(rng.integers(-9, 9, (3, 5)))
        expected = [array.copy() for array in arrays]
        there = staging.put(arrays)
        for array in arrays:
            array[...] = 77
        for tensor, array in zip(there, expected, strict=True):
            assert tensor.dtype == torch.int64
            np.testing.assert_array_equal(tensor.numpy(), array)


def test_a_step_does_not_write_over_the_one_before() -> None:
    """Buffers take turns, so what two steps staged is whole at the same time."""
    staging = PinnedStaging(CPU)
    first = staging._buffers[0].data_ptr()
    staging.put([np.arange(4)])
    staging.put([np.arange(4, 8)])
    assert staging._buffers[0][:4].tolist() == [0, 1, 2, 3]
    assert staging._buffers[1][:4].tolist() == [4, 5, 6, 7]
    staging.put([np.arange(8, 12)])
    assert staging._buffers[0][:4].tolist() == [8, 9, 10, 11]
    assert staging._buffers[0].data_ptr() == first


def test_a_cpu_reads_the_arrays_themselves() -> None:
    """Nothing is copied where the device shares the host's memory."""
    array = np.arange(5)
    (tensor,) = DirectStaging(CPU).put([array])
    array[0] = 9
    assert tensor.tolist() == [9, 1, 2, 3, 4]


# --- graphs ----------------------------------------------------------------------------------


class _Plan:
    """A plan of fixed capacity made of the plain backend's, new at each update."""

    def __init__(self, kv: KvTensors, num_rows: int, **options: object) -> None:
        self._kv, self._num_rows, self._options = kv, num_rows, options
        self.update(())

    def update(self, rows) -> None:
        self._rows = list(rows)

    def attend(self, layer: int, queries: torch.Tensor) -> torch.Tensor:
        assert len(queries) == self._num_rows
        out = torch.zeros_like(queries)
        if self._rows:
            plan = TorchAttention().plan(self._kv, self._rows, **self._options)
            out[: len(self._rows)] = plan.attend(layer, queries[: len(self._rows)])
        return out


class _Writer(TorchKvWriter):
    """Writes where a tensor says at the time; -1 is nowhere."""

    def __init__(self, kv: KvTensors, slots: torch.Tensor) -> None:
        self._kv, self._slots = kv, slots

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        kept = self._slots >= 0
        self._kv.keys[layer][:, self._slots[kept]] = keys[kept].transpose(0, 1)
        self._kv.values[layer][:, self._slots[kept]] = values[kept].transpose(0, 1)


class _Attention:
    """What a graph asks of attention, on a CPU."""

    def decode_plan(self, kv, capacity, num_heads, *, window=None, softcap=None):
        return _Plan(kv, capacity.num_rows, window=window, softcap=softcap)

    def writer(self, kv, slots):
        return _Writer(kv, slots)


class _Capture:
    """Captures as a GPU does: the result stays where it is, and is computed anew there."""

    def __init__(self) -> None:
        self.num_captures = 0

    def __call__(self, work: Callable[[], torch.Tensor]):
        self.num_captures += 1
        result = work()
        return result, lambda: result.copy_(work())


def _with_graphs(driver: Driver, capture: Callable, sizes=(1, 2, 4)) -> DecodeGraphs:
    runner = driver.loaded.runner
    graphs = DecodeGraphs(
        runner._model.decoder, _Attention(), runner._kv.tensors, 512, capture, sizes
    )
    runner._graphs = graphs
    return graphs


@pytest.mark.parametrize("num_rows", [1, 3, 4])
@pytest.mark.parametrize("window", [None, 6])
def test_replay_equals_eager(num_rows: int, window: int | None) -> None:
    """A padded, captured step gives each row what the same step gives without a graph."""
    changes = (("sliding_window", window),)
    directory = tiny_llama("mistral", changes=changes) if window else tiny_llama()
    prompts = [[1, *range(40 + i, 46 + 3 * i)] for i in range(num_rows)]
    answers = []
    for is_captured in (False, True):
        driver = Driver(load(directory, kernels="torch"))
        capture = _Capture()
        if is_captured:
            _with_graphs(driver, capture)
        found = []
        slots = [driver.new_slots(len(p) + 5) for p in prompts]
        known = [list(p) for p in prompts]
        starts = [0] * num_rows
        for _ in range(5):
            rows = [driver.row(known[i], slots[i], starts[i]) for i in range(num_rows)]
            answer = driver.step(rows).rows
            starts = [len(ids) for ids in known]
            for ids, row in zip(known, answer, strict=True):
                ids.append(row.token_id)
            found.append([(row.token_id, row.logprob) for row in answer])
        assert capture.num_captures == is_captured
        answers.append(found)
    for eager, replayed in zip(*answers, strict=True):
        assert [t for t, _ in eager] == [t for t, _ in replayed]
        assert [p for _, p in eager] == pytest.approx([p for _, p in replayed], abs=1e-5)


def test_padding_does_not_touch_the_store() -> None:
    """A step of one row in a graph of four changes one slot of a layer."""
    driver = Driver(load(tiny_llama(), kernels="torch"))
    _with_graphs(driver, _Capture(), sizes=(4,))
    slots = driver.new_slots(9)
    driver.step([driver.row(_IDS, slots, params=None)])
    before = driver.loaded.runner._kv.tensors.keys.clone()
    driver.step([driver.row([*_IDS, 33], slots, 8)])
    changed = (driver.loaded.runner._kv.tensors.keys != before).any(dim=3).any(dim=1)
    assert changed.nonzero()[:, 1].unique().tolist() == [8]


def test_fewer_rows_than_before_leave_no_trace() -> None:
    """Rows of an earlier, fuller step are padding in the next one."""
    driver = Driver(load(tiny_llama(), kernels="torch"))
    graphs = _with_graphs(driver, _Capture(), sizes=(4,))
    slots = [driver.new_slots(9) for _ in range(4)]
    driver.step([driver.row(_IDS, one, params=None) for one in slots])
    driver.step([driver.row([*_IDS, 33], one, 8) for one in slots])
    driver.step([driver.row([*_IDS, 44], slots[0], 8)])
    inputs = graphs._graphs[4]._inputs
    assert inputs[:, 1:].tolist() == padding(1, 3).tolist()
    assert inputs[:, 0].tolist() == [44, 8, 8]


def test_a_capture_that_fails_is_the_last() -> None:
    """The step runs without a graph, the reason is kept, and nothing is captured again."""
    driver = Driver(load(tiny_llama(), kernels="torch"))
    expected = driver.greedy(_IDS, 4)
    calls: list[int] = []

    def capture(work: Callable) -> None:
        calls.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    graphs = _with_graphs(driver, capture)
    assert driver.greedy(_IDS, 4) == expected
    assert calls == [1]
    assert graphs.failure is not None
    assert graphs.failure.startswith("decode steps are not captured: operation not permitted")


def test_only_pure_decode_steps_are_taken() -> None:
    """Prompts, scores, rivals, two-way spans and steps without rows are not."""
    driver = Driver(load(tiny_llama()))
    slots = driver.new_slots(9)
    plain = driver.row([*_IDS, 33], slots, 8)
    others = [
        driver.row(_IDS, slots),
        driver.row([*_IDS, 33], slots, 8, params=None),
        driver.row([*_IDS, 33], slots, 8, logprobs_from=3),
        driver.row([*_IDS, 33], slots, 8, rivals=((9, 4),)),
        driver.row([*_IDS, 33], slots, 8, two_way=((8, 9),)),
    ]
    assert is_decode(ForwardPlan(1, (plain, plain)))
    assert not is_decode(ForwardPlan(1, ()))
    assert [is_decode(ForwardPlan(1, (plain, one))) for one in others] == [False] * 5


def test_the_least_graph_that_holds_the_rows_is_taken() -> None:
    """Padding is less than half of a graph's rows, and of no more than 128."""
    assert [size_for(n) for n in (1, 3, 9, 17, 128, 129)] == [1, 4, 12, 24, 128, None]
    for rows in range(1, 129):
        size = size_for(rows)
        assert size is not None
        assert rows <= size < 2 * rows + (rows == 1)
    assert list(GRAPH_SIZES) == sorted(set(GRAPH_SIZES))


def test_inputs_of_a_step_and_its_padding() -> None:
    """Ids, slots and positions in rows; three rows of positions where models ask for them."""
    driver = Driver(load(tiny_llama()))
    slots = np.array([5, 9, 2])
    rows = (driver.row([1, 40, 33], slots, 2), driver.row([1, 44], slots + 10, 1))
    plan = ForwardPlan(1, rows)
    assert decode_inputs(plan, 1).tolist() == [[33, 44], [2, 19], [2, 1]]
    assert decode_inputs(plan, 3)[2:].tolist() == [[2, 1]] * 3
    grid = driver.row([1, 40, 33], slots, 2, positions=np.array([[7], [8], [9]]))
    inputs = decode_inputs(ForwardPlan(1, (grid,)), 3)
    assert inputs.tolist() == [[33], [2], [7], [8], [9]]
    assert padding(3, 2).tolist() == [[0, 0], [NO_SLOT] * 2, [0, 0], [0, 0], [0, 0]]


# --- times -----------------------------------------------------------------------------------


def test_times_of_pictures_are_those_of_encoding() -> None:
    """A step without pictures tells 0 ms of encoding, one with a picture more."""
    driver = Driver(load(tiny_llava()))
    item = encode_item(1, 56)
    ids = [1, *[IMAGE_TOKEN_ID] * 16, 50]
    row = driver.row(ids, driver.new_slots(18), features=[FeatureUse(item.digest, 0, 1, 16)])
    first, second = driver.step([row], [item]), driver.step([row])
    assert first.encode_ms > 0
    assert second.encode_ms == 0
    assert second.forward_ms > 0


# --- memory ----------------------------------------------------------------------------------


def test_kv_gets_what_is_left() -> None:
    """The share of what is free, less the peak of a step and the pictures; never below 0."""
    budget = Budget(free=1000, share=0.9, peak=150, features=50)
    assert budget.kv == 700
    assert num_slots(budget.kv, 7, 10_000) == 100
    assert num_slots(budget.kv, 7, 30) == 30
    assert Budget(free=100, share=0.5, peak=80, features=0).kv == 0
    assert num_slots(0, 7, 30) == 1


def test_too_little_memory_is_refused_with_the_numbers() -> None:
    """The message says what is free, what is taken, and what is needed."""
    budget = Budget(free=1000, share=0.9, peak=800, features=50)
    check_room(budget, 5, 10)
    with pytest.raises(ModelRefused, match="leaves 50 for KV, 11 tokens need 55"):
        check_room(budget, 5, 11)


@pytest.mark.parametrize("has_grid", [False, True])
def test_the_probe_is_the_largest_step(has_grid: bool) -> None:
    """As many rows as may run, as many tokens as a step has, within the context."""
    plan = probe_plan(2048, 128, 4096, has_grid=has_grid)
    assert (len(plan.rows), plan.num_tokens) == (128, 2048)
    assert all(row.sampling is not None for row in plan.rows)
    assert len(np.unique(np.concatenate([row.slots for row in plan.rows]))) == 2048
    assert (plan.rows[0].positions is not None) == has_grid
    assert probe_plan(2048, 2, 100).num_tokens == 200
    assert probe_plan(3, 128, 100).num_tokens == 3


def test_the_probe_runs() -> None:
    """A runner carries it out as any other plan."""
    loaded = load(tiny_llama())
    rows = loaded.runner.execute(probe_plan(64, 4, 512)).rows
    assert [row.error for row in rows] == [None] * 4


# --- layout ----------------------------------------------------------------------------------


def test_slots_of_a_gpu_hold_their_heads_together() -> None:
    """[layers, G, N, D] by name, [layers, N, G, D] in memory; attention reads either."""
    kv = by_slot((2, 3, 10, 4), torch.float32, CPU)
    assert kv.shape == (2, 3, 10, 4)
    assert kv.transpose(1, 2).is_contiguous()
    generator = torch.Generator().manual_seed(0)
    rows, queries = [QueryRow(2, np.arange(6))], torch.randn(2, 6, 4, generator=generator)
    values = torch.randn(kv.shape, generator=generator)
    plain = TorchAttention().plan(KvTensors(values, values), rows).attend(1, queries)
    kv.copy_(values)
    assert torch.equal(TorchAttention().plan(KvTensors(kv, kv), rows).attend(1, queries), plain)
