"""Kernels against references in double precision, and their times beside the ceilings."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from benchmarks.device.ceilings import Ceilings
from benchmarks.device.sizes import Line, Setting, best_s
from mmserve.kernels import AttentionBackend, KvTensors, Ops, QueryRow, TorchAttention

__all__ = ["measure"]

_LAYERS = 2


def measure(setting: Setting, ops: Ops, ceilings: Ceilings) -> list[Line]:
    """Errors and times of attention and of norms."""
    lines = []
    for name, rows, window, softcap in _cases(setting):
        kv, queries = _inputs(setting, rows)
        plan = ops.attention.plan(kv, rows, window=window, softcap=softcap)
        got = plan.attend(0, queries)
        wanted = _reference(kv, rows, queries, window, softcap)
        error = _error(got, wanted)
        seconds = best_s(setting, lambda plan=plan, q=queries: plan.attend(0, q))
        num_bytes = _bytes_read(kv, rows, queries)
        share = num_bytes / seconds / ceilings.copy_bytes_per_s
        lines += [
            Line(section="kernels", name=f"{name}: error", value=error, unit="relative"),
            Line(
                section="kernels",
                name=f"{name}: time",
                value=seconds * 1e6,
                unit="us",
                against=share,
                note="share of the copy rate, shared slots counted once",
            ),
        ]
    return lines + _elementwise(setting, ops, ceilings)


def _cases(
    setting: Setting,
) -> list[tuple[str, list[QueryRow], int | None, float | None]]:
    scale = 16 if setting.is_tiny else 1
    length, picture = 4096 // scale, 576 // scale
    lone = [QueryRow(1, np.arange(i * length, (i + 1) * length)) for i in range(4)]
    shared: list[QueryRow] = []
    next_slot = 0
    for _ in range(4):
        prefix = np.arange(next_slot, next_slot + picture)
        next_slot += picture
        for _ in range(8):
            own = np.arange(next_slot, next_slot + 40)
            next_slot += 40
            shared.append(QueryRow(1, np.concatenate([prefix, own])))
    prompt = [QueryRow(length // 2, np.arange(length))]
    spans = [QueryRow(64, np.arange(200), ((150, 180),))]
    return [
        ("decode 4 x 4096", lone, None, None),
        ("decode 4 pictures x 8", shared, None, None),
        ("prompt 2048 of 4096", prompt, None, None),
        ("prompt, window", prompt, length // 8, None),
        ("prompt, soft cap", prompt, None, 30.0),
        ("two-way span", spans, None, None),
        ("one token", [QueryRow(1, np.array([3]))], None, None),
    ]


def _inputs(setting: Setting, rows: list[QueryRow]) -> tuple[KvTensors, Tensor]:
    heads, groups, size = (4, 2, 64) if setting.is_tiny else (32, 8, 128)
    num_slots = 1 + max(int(row.slots.max()) for row in rows)
    generator = torch.Generator(setting.device).manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, device=setting.device)
        return values.to(setting.dtype)

    keys, values = (drawn(_LAYERS, num_slots, groups, size).transpose(1, 2) for _ in range(2))
    num_tokens = sum(row.num_queries for row in rows)
    return KvTensors(keys, values), drawn(num_tokens, heads, size)


def _reference(
    kv: KvTensors,
    rows: list[QueryRow],
    queries: Tensor,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """The plain backend on the same numbers, in float64."""
    wide = KvTensors(kv.keys[:1].double(), kv.values[:1].double())
    plain: AttentionBackend = TorchAttention()
    plan = plain.plan(wide, rows, window=window, softcap=softcap)
    return plan.attend(0, queries.double())


def _error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


def _bytes_read(kv: KvTensors, rows: list[QueryRow], queries: Tensor) -> int:
    slots = np.unique(np.concatenate([row.slots for row in rows]))
    per_slot = 2 * kv.keys.shape[1] * kv.keys.shape[3] * kv.keys.element_size()
    return len(slots) * per_slot + 2 * queries.numel() * queries.element_size()


def _elementwise(setting: Setting, ops: Ops, ceilings: Ceilings) -> list[Line]:
    tokens, width = (64, 256) if setting.is_tiny else (4096, 4096)
    hidden, delta = (
        torch.randn(tokens, width, device=setting.device, dtype=setting.dtype) for _ in range(2)
    )
    gain = torch.randn(width, device=setting.device, dtype=setting.dtype)
    summed = hidden.double() + delta.double()
    scale = (summed.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    got = ops.add_norm(hidden.clone(), delta.clone(), gain, 1e-5)
    error = _error(got, summed * scale * gain.double())
    seconds = best_s(setting, lambda: ops.add_norm(hidden, delta, gain, 1e-5))
    num_bytes = 4 * hidden.numel() * hidden.element_size()
    share = num_bytes / seconds / ceilings.copy_bytes_per_s
    return [
        Line(section="kernels", name="add and norm: error", value=error, unit="relative"),
        Line(
            section="kernels",
            name="add and norm: time",
            value=seconds * 1e6,
            unit="us",
            against=share,
            note="share of the copy rate",
        ),
    ]
