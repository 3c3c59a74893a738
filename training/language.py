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
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer

from training.hints import HINT_LAYER, hint_loss
from training.init import init_language
from training.labels import GROUPS, NUM_FACTS, STARTS, patch_facts
from training.lessons import Shelf, clips_lesson, pairs_lesson, pictures_lesson
from training.loop import Scores, add_options, train
from training.model import WIDTH, make_model
from training.packing import Pack
from training.trees import Teller

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
    return oracle_logits(torch.from_numpy(patch_facts(shelf.labels(pack))))


def decode(model: nn.Module, pack: Pack, logits: Tensor) -> tuple[Tensor, ...]:
    """The decoder's states before and after each layer, [R, T, WIDTH], the last one normed.

    Args:
        model: The whole model.
        pack: The conversations.
        logits: [n, 36, WIDTH] float32, the projector's first layer for each picture.
    """
    language = model.model.language_model
    projector = model.model.multi_modal_projector
    shown = logits[pack.patches[:, 0], pack.patches[:, 1]]
    seen = projector.linear_2(projector.act(shown))
    is_image = (pack.ids == model.config.image_token_id)[..., None]
    return language(
        inputs_embeds=language.embed_tokens(pack.ids).masked_scatter(is_image, seen),
        attention_mask=pack.mask,
        position_ids=pack.positions,
        use_cache=False,
        output_hidden_states=True,
    ).hidden_states


def score(
    model: nn.Module, pack: Pack, states: tuple[Tensor, ...]
) -> tuple[Tensor, dict[str, list[bool]]]:
    """The weighted loss of the answers, and whether each would be said exactly.

    Returns:
        The loss, and for each kind a truth value for each answer: whether greedy decoding
        would give it (every token of it is the most likely one after those before).
    """
    words = model.lm_head(states[-1].reshape(-1, WIDTH)[pack.sources])
    losses = functional.cross_entropy(words, pack.targets, reduction="none")
    loss = (losses * pack.weights).sum() / len(pack.kinds)
    wrong = words.argmax(-1) != pack.targets
    errors = torch.zeros(len(pack.kinds)).index_add_(0, pack.answers, wrong.float())
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for kind, error in zip(pack.kinds, errors.tolist(), strict=True):
        verdicts[kind].append(error == 0)
    return loss, verdicts


def language_params(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The decoder's matrices, and the embedding, norms and the projector's second layer."""
    matrices, others = [], []
    for name, param in model.model.language_model.named_parameters():
        is_matrix = param.ndim == 2 and ".layers." in f".{name}"
        (matrices if is_matrix else others).append(param)
    return matrices, [*others, *model.model.multi_modal_projector.linear_2.parameters()]


Sight = Callable[[Shelf, Pack], Tensor]


# Lesson, rows in each step and rank, weight of its loss.
LESSONS = ((pictures_lesson, 6, 1.0), (pairs_lesson, 2, 0.4), (clips_lesson, 3, 0.8))


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
        states = decode(model, pack, sight(shelf, pack))
        loss, verdicts = score(model, pack, states)
        if lesson is clips_lesson:
            labels = torch.from_numpy(shelf.labels(pack))
            digit_ids = torch.tensor(teller.digit_ids)
            hint = hint_loss(model, pack, states[HINT_LAYER], labels, digit_ids)
            scores.note("hint", hint.item())
            loss = loss + hint
        (loss * weight).backward()
        scores.add(verdicts)
        first_loss = first_loss or loss.item()
    return first_loss


def main() -> None:
    """Trains until the planned time has passed, resuming from `--out` when it exists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    add_options(parser)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    model = make_model()
    init_language(model, tokenizer)
    teller = Teller(tokenizer, is_sparse=True)

    def teach(rng: random.Random, share: float, scores: Scores) -> float:
        teller.refocus(scores.shares)
        num_lessons = 1 + (share > 0.2) + (share > 0.3)
        return run_step(
            model, teller, lambda: Shelf(rng), rng, oracle_features, scores, num_lessons
        )

    train(args, model, language_params(model), teach)


if __name__ == "__main__":
    main()
