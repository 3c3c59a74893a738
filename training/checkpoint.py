"""Checkpoints from which a stage goes on as if it had never stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

__all__ = ["Average", "Progress", "restore", "save"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage has come."""

    step: int = 0
    spent_s: float = 0.0
    average: dict[str, Tensor] | None = None


class Average:
    """A running mean of the weights, which is better than any of its members."""

    def __init__(self, model: nn.Module, weights: dict[str, Tensor] | None = None) -> None:
        start = weights or model.state_dict()
        self.weights = {name: weight.clone() for name, weight in start.items()}

    def add(self, model: nn.Module, share: float) -> None:
        """Moves the mean by `share` of the way to the present weights."""
        for name, weight in model.state_dict().items():
            self.weights[name].lerp_(weight, share)


def save(
    path: Path,
    model: nn.Module,
    optimisers: Sequence[torch.optim.Optimizer],
    progress: Progress,
    average: Average | None = None,
) -> None:
    """Writes everything, then renames the file into place."""
    state = {
        "model": model.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "spent_s": progress.spent_s,
        "step": progress.step,
        "average": average.weights if average else None,
    }
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.rename(path)


def restore(
    path: Path, model: nn.Module, optimisers: Sequence[torch.optim.Optimizer]
) -> Progress:
    """Loads `path` if it exists. Changes: `model`, `optimisers`."""
    if not path.exists():
        return Progress()
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    for optimiser, state in zip(optimisers, saved["optimisers"], strict=True):
        optimiser.load_state_dict(state)
    return Progress(saved["step"], saved["spent_s"], saved.get("average"))
