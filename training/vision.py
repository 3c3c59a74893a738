"""Stage A: teaches the tower, densely, what every patch's cell holds.

    python -m training.vision POOL --out vision.pt --minutes 10

The dense heads become the first layer of the projector.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from training.checkpoint import Progress, restore, save
from training.labels import GROUPS, NUM_FACTS, STARTS, patch_facts
from training.model import make_model, normalise, tower_features
from training.muon import WallClock, make_optimisers

LOG = logging.getLogger("vision")
SMOOTHING = 0.01
HELD_OUT = 500


class Pool:
    """Rendered pictures of one kind, memory-mapped; the last HELD_OUT are for measuring."""

    def __init__(self, folder: Path, kind: str) -> None:
        stems = [
            p.name.removesuffix(".pictures.npy") for p in folder.glob(f"{kind}-*.pictures.npy")
        ]
        self.stems = sorted(stems)
        self.pictures = [
            np.load(folder / f"{s}.pictures.npy", mmap_mode="r") for s in self.stems
        ]
        self.labels = [np.load(folder / f"{s}.labels.npy") for s in self.stems]
        starts = [folder / f"{s}.starts.npy" for s in self.stems]
        self.starts = [
            np.load(path) if path.exists() else np.arange(len(labels) + 1)
            for path, labels in zip(starts, self.labels, strict=True)
        ]

    def draw(self, num: int, dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """`num` random training pictures and labels."""
        part = int(dice.integers(len(self.stems)))
        limit = len(self.labels[part]) - HELD_OUT
        rows = np.sort(dice.integers(limit, size=num))
        return self.pictures[part][rows], self.labels[part][rows]

    def held_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Pictures that `draw` never gives."""
        return self.pictures[-1][-HELD_OUT:], self.labels[-1][-HELD_OUT:]


def shuffle_cells(
    pictures: np.ndarray, labels: np.ndarray, dice: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Deals the cells of each picture anew: nine times the data for the price of a copy."""
    num = len(pictures)
    order = dice.permuted(np.tile(np.arange(9), (num, 1)), axis=1)
    rows = np.arange(num)[:, None]
    cells = pictures.reshape(num, 3, 32, 3, 32, 3).transpose(0, 1, 3, 2, 4, 5)
    cells = cells.reshape(num, 9, 32, 32, 3)[rows, order]
    cells = cells.reshape(num, 3, 3, 32, 32, 3).transpose(0, 1, 3, 2, 4, 5)
    return cells.reshape(num, 96, 96, 3), labels[rows, order]


def fact_loss(logits: Tensor, facts: Tensor) -> Tensor:
    """Mean over patches of the summed binary losses. [n, 36, NUM_FACTS] both."""
    target = (facts > 0).float() * (1 - 2 * SMOOTHING) + SMOOTHING
    return (
        functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
        .sum(-1)
        .mean()
    )


@torch.no_grad()
def measure(model: nn.Module, pictures: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Share of patches whose largest logit in each group is right, where the group applies."""
    logits = dense_logits(model, normalise(torch.from_numpy(pictures.copy())))
    facts = torch.from_numpy(patch_facts(labels))
    scores = {}
    for name, size in GROUPS.items():
        part = slice(STARTS[name], STARTS[name] + size)
        known = (facts[..., part] > 0).any(-1)
        right = logits[..., part].argmax(-1) == facts[..., part].argmax(-1)
        scores[name] = right[known].float().mean().item()
    return scores


def dense_logits(model: nn.Module, pixels: Tensor) -> Tensor:
    """[n, 36, NUM_FACTS] outputs of the projector's first layer."""
    head = model.model.multi_modal_projector.linear_1
    return functional.linear(
        tower_features(model, pixels), head.weight[:NUM_FACTS], head.bias[:NUM_FACTS]
    )


def split_params(
    model: nn.Module,
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The tower's matrices, and everything else stage A trains."""
    matrices, others = [], []
    for name, param in model.model.vision_tower.named_parameters():
        is_matrix = param.ndim == 2 and ".layers." in name
        (matrices if is_matrix else others).append(param)
    others += list(model.model.multi_modal_projector.linear_1.parameters())
    return matrices, others


def draw_batch(
    dense: Pool, natural: Pool, num: int, dice: np.random.Generator, *, late: bool
) -> tuple[Tensor, Tensor]:
    """Normalised pixels and facts; three quarters dense, half of those dealt anew."""
    num_natural = num // 2 if late else num // 8
    first, first_labels = dense.draw(num - num_natural, dice)
    if dice.random() < 0.5:
        first, first_labels = shuffle_cells(first, first_labels, dice)
    parts = (
        [(first, first_labels), natural.draw(num_natural, dice)]
        if natural.stems
        else [(first, first_labels)]
    )
    pictures = torch.from_numpy(np.concatenate([p for p, _ in parts]))
    facts = torch.from_numpy(patch_facts(np.concatenate([label for _, label in parts])))
    pixels = normalise(pictures)
    gain = 1 + 0.06 * torch.randn(len(pixels), 1, 1, 1)
    return pixels * gain + 0.08 * torch.randn(len(pixels), 3, 1, 1), facts


def main() -> None:
    """Trains until the planned time has passed, resuming from `--out` when it exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = make_model()
    optimisers = make_optimisers(*split_params(model), muon_lr=0.02, adam_lr=2e-3)
    progress = restore(args.out, model, optimisers)
    clock = WallClock(args.minutes * 60, progress.spent_s)
    train(args, model, optimisers, clock, progress.step)


def train(
    args: argparse.Namespace,
    model: nn.Module,
    optimisers: list[torch.optim.Optimizer],
    clock: WallClock,
    step: int,
) -> None:
    """The training loop. Changes: `model`, `optimisers`, the file `args.out`."""
    dense, natural = Pool(args.pool, "dense"), Pool(args.pool, "natural")
    dice = np.random.default_rng(args.seed + step)
    next_save_s, mean = clock.spent_s + 60, 0.0
    while True:
        late = clock.share > 0.7
        pixels, facts = draw_batch(dense, natural, args.batch, dice, late=late)
        loss = fact_loss(dense_logits(model, pixels), facts)
        loss.backward()
        share = clock.share
        rate = clock.apply(optimisers, share)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        mean = loss.item() if step == 1 else 0.98 * mean + 0.02 * loss.item()
        if step % 50 == 0:
            LOG.info("step %d  loss %.4f  rate %.3f  %.0f s", step, mean, rate, clock.spent_s)
        if clock.spent_s > next_save_s or share >= 1:
            next_save_s = clock.spent_s + 120
            scores = measure(model, *dense.held_out())
            LOG.info("%s", "  ".join(f"{k} {v:.4f}" for k, v in scores.items()))
            save(args.out, model, optimisers, Progress(step, clock.spent_s))
            dense, natural = Pool(args.pool, "dense"), Pool(args.pool, "natural")
        if share >= 1:
            return


if __name__ == "__main__":
    main()
