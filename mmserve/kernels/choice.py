"""Which kernels a model computes with: chosen once at load, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from mmserve.core import BadRequest, Kernels
from mmserve.kernels.ops import Ops, TorchOps

__all__ = ["ChosenOps", "choose_ops"]

_Make = Callable[[torch.device, torch.dtype], Ops]


class _Unusable(Exception):
    """Why kernels cannot be used here."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenOps:
    """What was chosen, and a line for each of those that were not, saying why."""

    ops: Ops
    notes: tuple[str, ...]


def _torch(_device: torch.device, _dtype: torch.dtype) -> Ops:
    return TorchOps()


_CANDIDATES: Mapping[str, _Make] = {"torch": _torch}
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
            ops = make(device, dtype)
        except _Unusable as reason:
            notes.append(f"{name} kernels are not used: {reason}")
            continue
        return ChosenOps(ops, (f"{name} kernels compute", *notes))
    message = f"kernels is {wanted!r}: " + "; ".join(notes or ["not known"])
    raise BadRequest(message, field="kernels", reason="unusable")
