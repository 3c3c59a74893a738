"""What only a CUDA device can prove: kernels, graphs, launches ahead, equality in bf16."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.device import kernels, models
from benchmarks.device.programs import Run, _Sequence, greedy
from benchmarks.device.run import _agreement
from benchmarks.device.sizes import Setting
from mmserve.core import ForwardPlan, PlanRow, RowSampling, SamplingParams
from mmserve.kernels import choose_ops
from mmserve.runner import TorchRunner

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

_REPORTED = SamplingParams(temperature=0.0, return_logprobs=True)
_WARM = SamplingParams(temperature=0.8, top_p=0.9)
_NOTHING = np.zeros(0, dtype=np.int64)


@pytest.fixture(scope="module")
def setting() -> Setting:
    """True sizes in bf16."""
    return Setting(
        device=torch.device("cuda"), dtype=torch.bfloat16, is_tiny=False, limit_s=1e9
    )


@pytest.fixture(scope="module")
def pair(setting: Setting) -> models.Pair:
    """A Llama in bf16 with its twin in transformers."""
    with torch.inference_mode():
        chosen = choose_ops("auto", setting.device, setting.dtype)
        return models.text(setting, chosen.ops, 16_384)


def _eager(pair: models.Pair) -> TorchRunner:
    """The same weights and store, without graphs."""
    runner = pair.runner
    return TorchRunner(runner._model, runner._kv, runner._features, runner._ops, runner._device)


def _decode_plans(num_rows: int, num_steps: int, params: SamplingParams) -> list[ForwardPlan]:
    """A step of prompts, then steps of one given token a row: nothing depends on draws."""
    rng = np.random.default_rng(num_rows)
    lengths = rng.integers(1, 60, num_rows)
    starts = np.cumsum([0, *(lengths + num_steps)[:-1]])
    plans = []
    for step in range(num_steps + 1):
        rows = []
        for number, (first, length) in enumerate(zip(starts, lengths, strict=True)):
            start, end = (0, length) if step == 0 else (length + step - 1, length + step)
            rows.append(
                PlanRow(
                    number,
                    int(start),
                    rng.integers(8, 400, end - start),
                    np.arange(first, first + end),
                    sampling=RowSampling(params, number, step, _NOTHING),
                )
            )
        plans.append(ForwardPlan(step, tuple(rows)))
    return plans


@torch.inference_mode()
def test_kernels_equal_double_precision(setting: Setting) -> None:
    """Attention and norms are within 1e-2 of float64 by relative norm, in every case."""
    ops = choose_ops("auto", setting.device, setting.dtype).ops
    most = kernels.Ceilings(1e12, 1e14)
    errors = {
        line.name: line.value
        for line in kernels.measure(setting, ops, most)
        if line.name.endswith("error")
    }
    assert len(errors) == 8
    assert {name: value for name, value in errors.items() if not value < 1e-2} == {}


@pytest.mark.parametrize("num_rows", [1, 3, 8, 33])
def test_replay_equals_eager(pair: models.Pair, num_rows: int) -> None:
    """A captured decode step, padded or not, draws what the same step draws without a graph."""
    assert pair.runner._graphs is not None
    plans = _decode_plans(num_rows, 5, _REPORTED)
    replayed = [pair.runner.execute(plan).rows for plan in plans]
    assert pair.runner._graphs.failure is None
    eager = [_eager(pair).execute(plan).rows for plan in plans]
    for ours, theirs in zip(replayed, eager, strict=True):
        np.testing.assert_allclose(
            [row.logprob for row in ours], [row.logprob for row in theirs], atol=5e-2
        )
        same = [a.token_id == b.token_id for a, b in zip(ours, theirs, strict=True)]
        assert np.mean(same) > 0.9  # near ties may flip where a kernel cuts a row elsewhere


def test_launching_ahead_equals_executing(pair: models.Pair) -> None:
    """Two steps under way at once give what one after the other gives, warm rows too."""
    for params in (_REPORTED, _WARM):
        plans = _decode_plans(8, 12, params)
        expected = [[row.token_id for row in pair.runner.execute(p).rows] for p in plans]
        got = []
        pending = pair.runner.launch(plans[0])
        for plan in plans[1:]:
            following = pair.runner.launch(plan)
            got.append([row.token_id for row in pending.finish().rows])
            pending = following
        got.append([row.token_id for row in pending.finish().rows])
        assert got == expected


def test_a_launch_does_not_wait(pair: models.Pair) -> None:
    """Torch reports no synchronisation while a step is launched, by a graph or without."""
    for runner in (pair.runner, _eager(pair)):
        plans = _decode_plans(8, 4, _WARM)
        for plan in plans[:-1]:
            runner.execute(plan)
        torch.cuda.set_sync_debug_mode("error")
        try:
            pending = runner.launch(plans[-1])
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert len(pending.finish().rows) == 8


@torch.inference_mode()
def test_greedy_equals_transformers_in_bf16(setting: Setting, pair: models.Pair) -> None:
    """Every drawn token is within rounding of the best of transformers, given those before."""
    rng = np.random.default_rng(5)
    prompts = [rng.integers(8, 400, length) for length in (1, 9, 77, 300)]
    found = greedy(pair, prompts, 32)
    shares = [
        _agreement(setting, pair, prompt, answer, {})
        for prompt, answer in zip(prompts, found, strict=True)
    ]
    assert shares == [1.0] * 4


def test_chunks_equal_the_whole(pair: models.Pair) -> None:
    """A prompt in pieces draws what it draws at once."""
    prompt = np.random.default_rng(6).integers(8, 400, 200)
    run = Run(pair)
    whole = run.sampled([_Sequence([], [], 0)], [prompt], 0)
    pieces = _Sequence([], [], 0)
    for start in range(0, 200, 37):
        drawn = run.sampled([pieces], [prompt[start : start + 37]], 0)
    assert drawn == whole
