"""The training loop of stages B and C: one or two processes, resumable, ruled by the clock."""

import argparse
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from training.checkpoint import Average, Progress, restore, save
from training.muon import WallClock, make_optimisers

__all__ = ["Scores", "add_options", "train"]

LOG = logging.getLogger("training")
MEETING = 10  # steps between two averagings of the ranks' weights
SAVE_EVERY_S = 120


class Scores:
    """Share of exact answers for each kind since it was last told."""

    def __init__(self) -> None:
        self._verdicts: dict[str, list[float]] = defaultdict(list)
        self.shares: dict[str, float] = {}

    def add(self, verdicts: dict[str, list[bool]]) -> None:
        """Notes new verdicts."""
        for kind, values in verdicts.items():
            self._verdicts[kind] += values

    def note(self, name: str, value: float) -> None:
        """Notes a number to be told as the mean of its kind."""
        self._verdicts[name].append(value)

    def tell(self) -> str:
        """The shares as one line; starts anew."""
        self.shares = {k: sum(v) / len(v) for k, v in sorted(self._verdicts.items())}
        self._verdicts.clear()
        return "  ".join(f"{kind} {share:.3f}" for kind, share in self.shares.items())


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `train` reads."""
    parser.add_argument("--out", type=Path, required=True, help="checkpoint, resumed from")
    parser.add_argument("--minutes", type=float, default=50, help="in all, earlier runs too")
    parser.add_argument("--fall", type=float, default=0.6, help="share with falling rate")
    parser.add_argument("--muon-rate", type=float, default=0.006)
    parser.add_argument("--adam-rate", type=float, default=1.5e-3)
    parser.add_argument("--world", type=int, default=1, help="number of processes")
    parser.add_argument("--rank", type=int, default=0, help="number of this process")
    parser.add_argument("--port", type=int, default=29571)


@torch.no_grad()
def meet(params: list[nn.Parameter], clock: WallClock) -> float:
    """Averages the weights over all ranks; momenta stay local.

    Rare meetings, since on a busy machine each costs waiting for the slowest rank.
    Changes: `params`. Returns rank 0's share of the planned time.
    """
    share = torch.tensor([clock.share])
    if dist.is_initialized():
        dist.broadcast(share, 0)
        flat = torch.cat([param.reshape(-1) for param in params])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for param, part in zip(params, flat.split([p.numel() for p in params]), strict=True):
            param.copy_(part.view_as(param))
    return share.item()


def resume(
    args: argparse.Namespace, model: nn.Module, optimisers: list[torch.optim.Optimizer]
) -> Progress:
    """Loads the checkpoint if there is one, and joins the ranks. Changes: both arguments."""
    progress = restore(args.out, model, optimisers)
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["peak"] = args.adam_rate if "betas" in group else args.muon_rate
    if args.world > 1:
        address = f"tcp://127.0.0.1:{args.port}"
        dist.init_process_group(
            "gloo", init_method=address, world_size=args.world, rank=args.rank
        )
    return progress


def train(
    args: argparse.Namespace,
    model: nn.Module,
    params: tuple[list[nn.Parameter], list[nn.Parameter]],
    teach: Callable[[random.Random, float, Scores], float],
) -> None:
    """Trains until the planned minutes are over.

    Args:
        args: The options of `add_options`.
        model: What is trained and saved.
        params: The parameters for Muon and those for AdamW.
        teach: Adds the gradients of one step; gets chance, the share of time that has passed
            and where to note verdicts, and returns a loss to log.

    Changes: `model`, the file `args.out`.
    """
    optimisers = make_optimisers(*params, args.muon_rate, args.adam_rate)
    progress = resume(args, model, optimisers)
    clock = WallClock(args.minutes * 60, progress.spent_s, fall=args.fall)
    step, share = progress.step, clock.share
    rng = random.Random(f"{step} {args.rank}")
    torch.manual_seed(step * 2 + args.rank)
    average, scores = Average(model, progress.average), Scores()
    next_save_s = clock.spent_s + SAVE_EVERY_S
    while share < 1:
        loss = teach(rng, share, scores)
        rate = clock.apply(optimisers, share)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        if step % MEETING == 0:
            share = meet([*params[0], *params[1]], clock)
            average.add(model, 0.1)
        if step % 100 == 0:
            told = scores.tell()
            if args.rank == 0:
                LOG.info("step %d loss %.3f rate %.3f %.0f s", step, loss, rate, clock.spent_s)
                LOG.info("%s", told)
        is_due = share >= 1 or clock.spent_s > next_save_s
        if args.rank == 0 and step % MEETING == 0 and is_due:
            next_save_s = clock.spent_s + SAVE_EVERY_S
            save(args.out, model, optimisers, Progress(step, clock.spent_s), average)
