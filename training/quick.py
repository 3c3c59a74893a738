"""Measures an exported folder fast: all questions of a picture in one pass, nothing generated.

    python -m training.quick FOLDER --first 0 --scenes 2000 --clips 400

An answer counts as right if each of its tokens, its end included, is the most likely one after
those before it: just when greedy decoding would say it, ties aside. Pixels are those that the
exported processor and a video decoder give. `training.evaluate` is the judge; this is for the
time while training.
"""

import argparse
import io
import random
from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoTokenizer, LlavaForConditionalGeneration

from mmserve.testing.clips import clip
from mmserve.testing.scenes import TEST_SEEDS, scene
from training.evaluate import report
from training.language import decode, score
from training.model import normalise, tower_features
from training.packing import pack
from training.pool import reduce_picture
from training.trees import Teller, Tree, turns_of

Row = tuple[list[Tree], list[np.ndarray]]  # conversations and the pictures they show


def scene_row(teller: Teller, seed: int, rng: random.Random) -> Row:
    """A scene's questions, those about two pictures apart."""
    made = scene(seed)
    alone = teller.root("<s><|user|><image>", [0], rng)
    row, pictures = [alone], [reduce_picture(made.image)]
    for question in made.questions:
        if question.other_image is None:
            teller.grow(alone, turns_of(question))
            continue
        pair = teller.root("<s><|user|><image><image>", [0, 0], rng)
        teller.grow(pair, turns_of(question))
        row.append(pair)
        pictures += [pictures[0], reduce_picture(question.other_image)]
    return row, pictures


def clip_row(teller: Teller, seed: int, rng: random.Random) -> Row:
    """A clip's questions, after the frames decoded from its video."""
    film = clip(seed)
    with av.open(io.BytesIO(film.mp4)) as container:
        pictures = [reduce_picture(f.to_image()) for f in container.decode(video=0)]
    frames = "".join(f"frame {number}:<image>" for number in range(1, len(pictures) + 1))
    tree = teller.root(f"<s><|user|>{frames}", [0] * len(pictures), rng)
    for question in film.questions:
        teller.grow(tree, turns_of(question))
    return [tree], pictures


def see(model: nn.Module, pictures: list[np.ndarray]) -> Tensor:
    """[n, 36, WIDTH] outputs of the projector's first layer."""
    pixels = normalise(torch.from_numpy(np.stack(pictures)))
    return model.model.multi_modal_projector.linear_1(tower_features(model, pixels))


@torch.no_grad()
def measure_quickly(model: nn.Module, rows: Iterator[Row]) -> dict[str, tuple[int, int]]:
    """(right, asked) for each kind of question."""
    table: dict[str, tuple[int, int]] = {}
    for row, pictures in rows:
        batch = pack([row])
        _, verdicts = score(model, batch, decode(model, batch, see(model, pictures)))
        for kind, values in verdicts.items():
            right, asked = table.get(kind, (0, 0))
            table[kind] = (right + sum(values), asked + len(values))
    table.pop("history", None)
    return table


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--scenes", type=int, default=2000)
    parser.add_argument("--clips", type=int, default=400)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = LlavaForConditionalGeneration.from_pretrained(args.folder, dtype=torch.float32)
    teller = Teller(AutoTokenizer.from_pretrained(args.folder), is_sparse=False)
    rng = random.Random(0)
    seeds = TEST_SEEDS[args.first :]
    rows = (scene_row(teller, seed, rng) for seed in seeds[: args.scenes])
    films = (clip_row(teller, seed, rng) for seed in seeds[: args.clips])
    table = measure_quickly(model.eval(), rows) | measure_quickly(model.eval(), films)
    print(report(table))


if __name__ == "__main__":
    main()
