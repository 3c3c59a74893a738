"""Stage C: joins tower and language model and trains both on pixels.

    python -m training.joint TOKENIZER POOL --vision vision.pt --language language.pt \
        --out joint.pt --minutes 40 --world 2 --rank 0

`--vision` and `--language` are read only when `--out` does not exist yet.
"""

import argparse
import logging
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer

from mmserve.testing.scenes_stories import Story
from mmserve.testing.scenes_world import Layout
from training.export import load_parts
from training.labels import NUM_FACTS, patch_facts
from training.language import language_params, run_step
from training.lessons import Shelf
from training.loop import Scores, add_options, train
from training.model import make_model, normalise, tower_features
from training.packing import Pack
from training.pool import clip_story, natural_layout
from training.trees import Teller
from training.vision import Pool, fact_loss, split_params

DENSE_WEIGHT = 0.1


class Album(Shelf):
    """A shelf whose pictures were rendered before, so that they can be seen."""

    def __init__(self, rng: random.Random, natural: Pool, clips: Pool) -> None:
        super().__init__(rng)
        self._natural, self._clips = natural, clips
        self.pictures: list[np.ndarray] = []

    def picture(self) -> tuple[Layout, int]:
        """A rendered layout and its key."""
        seed = self._take(self._natural)
        self.layouts.append(natural_layout(seed))
        return self.layouts[-1], len(self.layouts) - 1

    def story(self) -> tuple[Story, list[int]]:
        """A rendered story and the keys of its frames."""
        start = len(self.pictures)
        story = clip_story(self._take(self._clips))
        self.layouts += story.layouts
        return story, list(range(start, len(self.pictures)))

    def _take(self, pool: Pool) -> int:
        part = self.rng.randrange(len(pool.stems))
        row = self.rng.randrange(len(pool.starts[part]) - 1)
        first, last = pool.starts[part][row : row + 2]
        self.pictures += list(pool.pictures[part][first:last])
        return int(pool.stems[part].split("-")[1]) + row


class Eyes:
    """Sight through the tower; collects the dense loss on the way.

    With `is_frozen` the tower and the projector's first layer are not trained.
    """

    def __init__(self, model: nn.Module, *, is_frozen: bool) -> None:
        self._model, self._is_frozen = model, is_frozen

    def __call__(self, shelf: Shelf, pack: Pack) -> Tensor:
        """[n, 36, WIDTH] of the pack's pictures; the dense loss goes backward at once."""
        if not isinstance(shelf, Album):
            raise TypeError("eyes need pictures, not layouts")
        pictures = np.stack([shelf.pictures[key] for key in pack.pictures])
        pixels = normalise(torch.from_numpy(pictures))
        pixels = pixels * (1 + 0.04 * torch.randn(len(pixels), 1, 1, 1))
        pixels = pixels + 0.05 * torch.randn(len(pixels), 3, 1, 1)
        head = self._model.model.multi_modal_projector.linear_1
        if self._is_frozen:
            with torch.no_grad():
                return head(tower_features(self._model, pixels))
        logits = head(tower_features(self._model, pixels))
        dense = fact_loss(
            logits[..., :NUM_FACTS], torch.from_numpy(patch_facts(shelf.labels(pack)))
        )
        (DENSE_WEIGHT * dense).backward(retain_graph=True)
        return logits


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("pool", type=Path)
    parser.add_argument("--vision", type=Path)
    parser.add_argument("--language", type=Path)
    parser.add_argument("--frozen", action="store_true", help="leave the tower as it is")
    parser.add_argument("--sparse", action="store_true", help="show one patch a cell")
    add_options(parser)
    return parser.parse_args()


def main() -> None:
    """Trains until the planned time has passed, resuming from `--out` when it exists."""
    args = parse()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    torch.set_num_threads(1)
    model = make_model()
    if not args.out.exists():
        load_parts(model, args.vision, args.language)
    matrices, others = language_params(model)
    if not args.frozen:
        more_matrices, more_others = split_params(model)
        matrices, others = matrices + more_matrices, others + more_others
    natural, clips = Pool(args.pool, "natural"), Pool(args.pool, "clips")
    eyes = Eyes(model, is_frozen=args.frozen)
    teller = Teller(AutoTokenizer.from_pretrained(args.tokenizer), is_sparse=args.sparse)

    def teach(rng: random.Random, share: float, scores: Scores) -> float:  # noqa: ARG001
        teller.refocus(scores.shares)
        return run_step(model, teller, lambda: Album(rng, natural, clips), rng, eyes, scores)

    train(args, model, (matrices, others), teach)


if __name__ == "__main__":
    main()
