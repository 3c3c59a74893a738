"""Stage B: teaches the language model on perfect sight, without any pixels.

    python -m training.language TOKENIZER --out language.pt --minutes 50 --world 2 --rank 0

In place of the projector's first layer stand noisy versions of what it is trained to give
(`oracle_logits`). With `--world 2`, one process per rank averages gradients over gloo.
"""

import argparse
import logging
import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer

from training.checkpoint import Average, Progress, restore, save
from training.init import init_language
from training.labels import GROUPS, NUM_FACTS, STARTS, layout_labels, patch_facts
from training.lessons import Shelf, clips_lesson, pairs_lesson, pictures_lesson
from training.model import WIDTH, make_model
from training.muon import WallClock, make_optimisers
from training.packing import Pack
from training.trees import Teller

LOG = logging.getLogger("language")
SURE = 4.6  # the logit that stage A's smoothing leads to


def oracle_logits(facts: Tensor) -> Tensor:
    """[n, 36, WIDTH] what a good, not perfect, tower would give for [n, 36, NUM_FACTS] facts.

    The outputs after NUM_FACTS are near zero.
    """
    logits = SURE * facts + 0.7 * torch.randn_like(facts)
    for name, size in GROUPS.items():
        part = logits[..., STARTS[name] : STARTS[name] + size]
        unsure = torch.rand(part.shape[:-1]) < 0.01
        part[unsure] = part[unsure] * 0.6 + 0.8 * torch.randn_like(part[unsure])
    return functional.pad(logits, (0, WIDTH - NUM_FACTS))


def oracle_features(shelf: Shelf, pack: Pack) -> Tensor:
    """[n, 36, WIDTH] oracle logits of the pack's pictures."""
    labels = [layout_labels(shelf.layouts[key]) for key in pack.pictures]
    facts = patch_facts(torch.tensor([label.tolist() for label in labels]).numpy())
    return oracle_logits(torch.from_numpy(facts))


def score(model: nn.Module, pack: Pack, logits: Tensor) -> tuple[Tensor, dict[str, list[bool]]]:
    """The weighted loss of the answers, and whether each would be said exactly.

    Args:
        model: The whole model.
        pack: The conversations.
        logits: [n, 36, WIDTH] float32, the projector's first layer for each picture.

    Returns:
        The loss, and for each kind a truth value for each answer: whether greedy decoding
        would give it (every token of it is the most likely one after those before).
    """
    language = model.model.language_model
    projector = model.model.multi_modal_projector
    embeds = language.embed_tokens(pack.ids)
    image_id = model.config.image_token_id
    shown = logits[pack.patches[:, 0], pack.patches[:, 1]]
    seen = projector.linear_2(projector.act(shown))
    embeds = embeds.masked_scatter((pack.ids == image_id)[..., None], seen)
    hidden = language(
        inputs_embeds=embeds,
        attention_mask=pack.mask,
        position_ids=pack.positions,
        use_cache=False,
    ).last_hidden_state
    words = model.lm_head(hidden.reshape(-1, WIDTH)[pack.sources])
    losses = functional.cross_entropy(words, pack.targets, reduction="none")
    loss = (losses * pack.weights).sum() / len(pack.kinds)
    wrong = words.argmax(-1) != pack.targets
    errors = torch.zeros(len(pack.kinds)).index_add_(0, pack.answers, wrong.float())
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for kind, error in zip(pack.kinds, errors.tolist(), strict=True):
        verdicts[kind].append(error == 0)
    return loss, verdicts


class Scores:
    """Share of exact answers for each kind since it was last told."""

    def __init__(self) -> None:
        self._verdicts: dict[str, list[bool]] = defaultdict(list)

    def add(self, verdicts: dict[str, list[bool]]) -> None:
        """Notes new verdicts."""
        for kind, values in verdicts.items():
            self._verdicts[kind] += values

    def tell(self) -> str:
        """The shares as one line; starts anew."""
        shares = [f"{k} {sum(v) / len(v):.3f}" for k, v in sorted(self._verdicts.items())]
        self._verdicts.clear()
        return "  ".join(shares)


def language_params(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The decoder's matrices, and the embedding, norms and the projector's second layer."""
    matrices, others = [], []
    for name, param in model.model.language_model.named_parameters():
        is_matrix = param.ndim == 2 and ".layers." in f".{name}"
        (matrices if is_matrix else others).append(param)
    return matrices, [*others, *model.model.multi_modal_projector.linear_2.parameters()]


MEETING = 10  # steps between two averagings of the weights


@torch.no_grad()
def meet(params: list[nn.Parameter], clock: WallClock) -> float:
    """Averages the weights over all ranks, every MEETING steps; momenta stay local.

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


def join_ranks(world: int, rank: int, port: int) -> None:
    """Opens the process group when there is more than one rank."""
    if world > 1:
        address = f"tcp://127.0.0.1:{port}"
        dist.init_process_group("gloo", init_method=address, world_size=world, rank=rank)


Sight = Callable[[Shelf, Pack], Tensor]


# Lesson, rows in each step and rank, weight of its loss.
LESSONS = ((pictures_lesson, 6, 1.0), (pairs_lesson, 1, 0.25), (clips_lesson, 2, 0.5))


def run_step(
    model: nn.Module,
    teller: Teller,
    new_shelf: Callable[[], Shelf],
    rng: random.Random,
    sight: Sight,
    scores: Scores,
    num_lessons: int = len(LESSONS),
) -> float:
    """Accumulates the gradients of one mixed batch of the first `num_lessons` of LESSONS.

    Changes: the gradients, `rng`, `scores`. Returns the loss of the pictures' part.
    """
    first_loss = 0.0
    for lesson, num_rows, weight in LESSONS[:num_lessons]:
        shelf = new_shelf()
        pack = lesson(teller, shelf, rng, num_rows)
        loss, verdicts = score(model, pack, sight(shelf, pack))
        (loss * weight).backward()
        scores.add(verdicts)
        first_loss = first_loss or loss.item()
    return first_loss


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=50)
    parser.add_argument("--muon-rate", type=float, default=0.01)
    parser.add_argument("--adam-rate", type=float, default=1e-3)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--port", type=int, default=29571)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Trains until the planned time has passed, resuming from `--out` when it exists."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = make_model()
    init_language(model, tokenizer)
    matrices, others = language_params(model)
    if args.muon_rate == 0:
        matrices, others = [], matrices + others
    optimisers = make_optimisers(matrices, others, args.muon_rate, args.adam_rate)
    progress = restore(args.out, model, optimisers)
    join_ranks(args.world, args.rank, args.port)
    clock = WallClock(args.minutes * 60, progress.spent_s, fall=0.2)
    step, share = progress.step, clock.share
    teller = Teller(tokenizer, is_sparse=True)
    rng = random.Random(f"language {args.seed} {step} {args.rank}")
    torch.manual_seed(step * 2 + args.rank)
    scores, next_save_s, average = Scores(), clock.spent_s + 120, Average(model)
    while True:
        num_lessons = 1 + (share > 0.2) + (share > 0.3)
        loss = run_step(
            model, teller, lambda: Shelf(rng), rng, oracle_features, scores, num_lessons
        )
        rate = clock.apply(optimisers, share)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
        step += 1
        if step % MEETING == 0:
            share = meet([*matrices, *others], clock)
            average.add(model, 0.1)
        if step % 100 == 0 and args.rank == 0:
            LOG.info("step %d loss %.3f rate %.3f %.0f s", step, loss, rate, clock.spent_s)
            LOG.info("%s", scores.tell())
        if args.rank == 0 and step % MEETING == 0 and clock.spent_s > next_save_s:
            next_save_s = clock.spent_s + 120
            save(args.out, model, optimisers, Progress(step, clock.spent_s), average)
        if share >= 1:
            break
    if args.rank == 0:
        save(args.out, model, optimisers, Progress(step, clock.spent_s), average)


if __name__ == "__main__":
    main()
