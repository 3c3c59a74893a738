"""Which kernels a model computes with: chosen once at load, with the reason."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mmserve.core import BadRequest, Kernels
from mmserve.kernels.cuda_choice import choose_cuda_attention
from mmserve.kernels.native import NativeOps, Unbuildable, tile_rows
from mmserve.kernels.ops import Ops, TorchOps

__all__ = ["ChosenOps", "choose_ops"]

_Notes = tuple[str, ...]
_Make = Callable[[torch.device, torch.dtype], tuple[Ops, _Notes]]


class _Unusable(Exception):
    """Why kernels cannot be used here."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenOps:
    """What was chosen, and a line for each of those that were not, saying why."""

    ops: Ops
    notes: tuple[str, ...]


def _torch(_device: torch.device, _dtype: torch.dtype) -> tuple[Ops, _Notes]:
    return TorchOps(), ()


def _native(device: torch.device, dtype: torch.dtype) -> tuple[Ops, _Notes]:
    if device.type != "cpu":
        raise _Unusable(f"they compute on a CPU, not on {device.type}")
    if dtype != torch.float32:
        raise _Unusable(f"they compute in float32, not in {str(dtype).removeprefix('torch.')}")
    try:
        ops = NativeOps()
        many = tile_rows()
        return ops, (f"products of {many} rows and more by matrix tiles (AMX)",) if many else ()
    except Unbuildable as reason:
        raise _Unusable(str(reason)) from reason


def _triton(device: torch.device, dtype: torch.dtype) -> tuple[Ops, _Notes]:
    if device.type != "cuda":
        raise _Unusable(f"they compute on a GPU, not on {device.type}")
    try:
        room = importlib.import_module("mmserve.kernels.triton.ops")
    except ImportError as error:
        raise _Unusable(f'{error}; pip install "mmserve[cuda]"') from error
    own: Ops = room.TritonOps()
    chosen = choose_cuda_attention(device, dtype, own.attention)
    return room.TritonOps(chosen.attention), chosen.notes


_CANDIDATES: Mapping[str, _Make] = {"triton": _triton, "native": _native, "torch": _torch}
"""By name, the fastest first; each raises `_Unusable` where it cannot be used."""


def choose_ops(wanted: Kernels, device: torch.device, dtype: torch.dtype) -> ChosenOps:
    """The fastest kernels that run here, or those that were asked for by name.

    Cost: native kernels are compiled once per machine. Raises BadRequest: what was asked for by
    name cannot run here.
    """
    notes: list[str] = []
    for name, make in _CANDIDATES.items():
        if wanted not in ("auto", name):
            continue
        try:
            ops, more = make(device, dtype)
        except _Unusable as reason:
            notes.append(f"{name} kernels are not used: {reason}")
            continue
        return ChosenOps(ops, (f"{name} kernels compute", *more, *notes))
    message = f"kernels is {wanted!r}: " + "; ".join(notes or ["not known"])
    raise BadRequest(message, field="kernels", reason="unusable")
