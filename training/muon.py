"""Muon for matrices, AdamW for the rest, and a schedule that follows the wall clock.

Source: Muon (Keller Jordan, 2024). We orthogonalise in float32, which is faster than bfloat16
on a CPU without bfloat16 units, and in three steps, since they are a quarter of our time.
"""

import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn

__all__ = ["Muon", "WallClock", "make_optimisers"]


# Each row is one step x <- a x + (b g + c g g) x with g = x x^T; together they take every
# singular value above about 0.01 close to 1. Source: The Polar Express (2025), its first rows.
_STEPS = (
    (8.2872, -23.5959, 17.3004),
    (4.1071, -2.9478, 0.5448),
    (3.9487, -2.9089, 0.5518),
)


def orthogonalise(matrix: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix to [m, n] `matrix`, roughly."""
    x = matrix / (1.01 * matrix.norm() + 1e-7)
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    for a, b, c in _STEPS:
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose update is orthogonalised; for matrices only."""

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # noqa: ARG002 (the base class's signature)
        """Changes: the parameters and the momentum buffers."""
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(param)
                buffer = state["buffer"]
                buffer.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonalise(param.grad.lerp(buffer, group["momentum"]))
                scale = max(1.0, param.size(0) / param.size(1)) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def make_optimisers(
    matrices: list[nn.Parameter], others: list[nn.Parameter], muon_lr: float, adam_lr: float
) -> list[torch.optim.Optimizer]:
    """Muon over `matrices` and AdamW over `others`; each remembers its peak rate."""
    optimisers: list[torch.optim.Optimizer] = []
    if matrices:
        optimisers.append(Muon(matrices, lr=muon_lr))
    if others:
        optimisers.append(
            torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0)
        )
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = group["lr"]
    return optimisers


class WallClock:
    """Learning-rate factor from the share of the planned time that has passed.

    Warm-up over the first `warm` share, flat, then a linear fall to 2 % over the last `fall`.
    Durations use the monotonic clock; `spent_s` is what earlier runs already used.
    """

    def __init__(
        self, total_s: float, spent_s: float = 0.0, warm: float = 0.02, fall: float = 0.5
    ) -> None:
        self.total_s, self.warm, self.fall = total_s, warm, fall
        self._start = time.monotonic() - spent_s

    @property
    def spent_s(self) -> float:
        """Seconds of training so far, earlier runs included."""
        return time.monotonic() - self._start

    @property
    def share(self) -> float:
        """The share of the planned time that has passed; 1 or more when it is over."""
        return self.spent_s / self.total_s

    def apply(self, optimisers: Iterable[torch.optim.Optimizer], share: float) -> float:
        """Sets the rate of every group to its peak times the factor at `share`, returned.

        Changes: `optimisers`.
        """
        rise = (share + 1e-3) / self.warm
        decline = (1 - share) / self.fall
        factor = max(0.02, min(1.0, rise, decline))
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["peak"] * factor
        return factor
