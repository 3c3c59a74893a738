"""What a loaded model gets of its device: slots of KV, and graphs of its decode steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mmserve.core import EngineConfig, ForwardPlan, PlanRow, RowSampling, SamplingParams
from mmserve.kernels import Ops
from mmserve.models import Decoder, Model
from mmserve.runner.feature_store import FeatureStore
from mmserve.runner.graphs import DecodeGraphs
from mmserve.runner.kv_store import KvStore
from mmserve.runner.memory import CPU_KV_BYTES, Budget, check_room, num_slots
from mmserve.runner.torch_runner import TorchRunner

__all__ = ["Needs", "graphs_for", "probe_plan", "slots_for"]

_GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True)
class Needs:
    """What sizes depend on.

    Args:
        config: the settings.
        context_length: most tokens of a sequence.
        bytes_per_token: of KV, over all layers.
        dtype: of KV.
        device: where the model lies.
    """

    config: EngineConfig
    context_length: int
    bytes_per_token: int
    dtype: torch.dtype
    device: torch.device


def slots_for(needs: Needs, model: Model, ops: Ops) -> int:
    """Tokens of KV to hold.

    Cost: on a GPU, unless the settings say how many or how many bytes, the largest step is run
    once. Raises ModelRefused if too little is free.
    """
    config = needs.config
    if config.num_slots:
        return config.num_slots
    most = config.sched.max_running * needs.context_length
    if config.kv_bytes is not None:
        return num_slots(config.kv_bytes, needs.bytes_per_token, most)
    if needs.device.type != "cuda":
        return num_slots(CPU_KV_BYTES, needs.bytes_per_token, most)
    peak = _measured_peak(needs, model, ops)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(needs.device)
    features = 0 if model.pictures is None else config.feature_cache_bytes
    budget = Budget(free=free, share=config.memory_share, peak=peak, features=features)
    least = min(config.sched.max_step_tokens, needs.context_length)
    check_room(budget, needs.bytes_per_token, least)
    return num_slots(budget.kv, needs.bytes_per_token, most)


def _measured_peak(needs: Needs, model: Model, ops: Ops) -> int:
    """Most bytes that the largest step of rows takes beside weights and KV."""
    sched, device, shape = needs.config.sched, needs.device, model.decoder.shape
    plan = probe_plan(
        sched.max_step_tokens,
        sched.max_running,
        needs.context_length,
        has_grid=shape.has_grid_positions,
    )
    store = KvStore(shape, plan.num_tokens, needs.dtype, device)
    runner = TorchRunner(model, store, FeatureStore(None, device), ops, device)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    runner.execute(plan)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def probe_plan(
    num_tokens: int, max_rows: int, context_length: int, *, has_grid: bool = False
) -> ForwardPlan:
    """A step of `num_tokens` tokens in as many rows as may run, all of which draw. Pure.

    Of more tokens than the rows may hold, it has as many as they may.
    """
    num_rows = max(1, min(max_rows, num_tokens))
    size = max(1, min(num_tokens // num_rows, context_length))
    rows = []
    for number in range(num_rows):
        slots = np.arange(number * size, (number + 1) * size, dtype=np.int64)
        grid = np.tile(np.arange(size, dtype=np.int64), (3, 1)) if has_grid else None
        sampling = RowSampling(_GREEDY, 0, 0, slots[:0])
        token_ids = np.zeros(size, dtype=np.int64)
        rows.append(PlanRow(number, 0, token_ids, slots, sampling=sampling, positions=grid))
    return ForwardPlan(0, tuple(rows))


def graphs_for(
    needs: Needs, model: Model, ops: Ops, store: KvStore
) -> tuple[DecodeGraphs | None, str | None]:
    """Graphs of decode steps, or why there are none; nothing is said where none could be.

    Cost: if the settings say so, captures all of them.
    """
    if needs.device.type != "cuda":
        return None, None
    if needs.config.cuda_graphs == "off":
        return None, "decode steps are not captured: the settings say so"
    if not isinstance(model.decoder, Decoder):
        return None, "decode steps are not captured: the model runs through transformers"
    attention: Any = getattr(ops.attention, "fallback", ops.attention)
    if not hasattr(attention, "decode_plan"):
        return None, f"decode steps are not captured: {ops.name} kernels do not allow it"
    graphs = DecodeGraphs(model.decoder, attention, store.tensors, needs.context_length)
    if needs.config.cuda_graphs == "start":
        graphs.prepare(needs.config.sched.max_running)
    return graphs, graphs.failure or "decode steps run as CUDA graphs"
