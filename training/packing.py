"""Packs token trees into rows of equal length with one attention mask."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from training.trees import Tree


@dataclass(frozen=True, slots=True)
class Pack:
    """A batch of R rows of T tokens.

    `ids` and `positions` are int64 [R, T]; `mask` is float32 [R, 1, T, T], 0 where attention
    is allowed; `pictures` are the keys in the order of the image tokens, and
    `frames` int64 [n] their numbers within their conversations, from 1; image token n shows
    patch `patches[n, 1]` of picture `patches[n, 0]`. The answers' tokens
    are listed flat: token n, `targets[n]`, is to be predicted at `sources[n]` of R * T places
    and belongs to answer `answers[n]`, whose kind is `kinds[answers[n]]`.
    """

    ids: Tensor
    positions: Tensor
    mask: Tensor
    sources: Tensor
    targets: Tensor
    answers: Tensor
    kinds: list[str]
    pictures: list[int]
    frames: Tensor
    patches: Tensor

    @property
    def weights(self) -> Tensor:
        """Loss weights: an answer of n tokens weighs the square root of n in all."""
        return torch.bincount(self.answers)[self.answers].float().rsqrt()


def pack(rows: Sequence[Sequence[Tree]]) -> Pack:
    """One row for each sequence of trees."""
    length = max(sum(tree.num_tokens for tree in row) for row in rows)
    shape = (len(rows), length)
    ids, positions, branches = (np.zeros(shape, np.int64) for _ in range(3))
    trees = np.full(shape, -1, np.int64)
    pictures: list[int] = []
    frames: list[int] = []
    patches: list[tuple[int, int]] = []
    kinds: list[str] = []
    copies = np.ones(shape, np.float32)
    scored: list[tuple[int, int, int]] = []
    for r, row in enumerate(rows):
        start = 0
        for number, tree in enumerate(row):
            patches += [(len(pictures) + n, patch) for n, patch in tree.patches]
            pictures += tree.pictures
            frames += range(1, len(tree.pictures) + 1)
            trees[r, start : start + tree.num_tokens] = number
            num_root = len(tree.root)
            ids[r, start : start + num_root] = tree.root
            copies[r, start : start + num_root] = tree.copies
            positions[r, start : start + num_root] = tree.positions
            start += num_root
            for b, branch in enumerate(tree.branches, 1):
                end = start + len(branch.ids)
                ids[r, start:end] = branch.ids
                positions[r, start:end] = tree.num_positions + np.arange(end - start)
                branches[r, start:end] = b
                for first, last, kind in branch.answers:
                    offset = r * length + start - 1
                    scored += [
                        (offset + n, branch.ids[n], len(kinds)) for n in range(first, last)
                    ]
                    kinds.append(kind)
                start = end
    sources, targets, answers = torch.tensor(scored).T
    return Pack(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(_mask(trees, branches, copies)),
        sources,
        targets,
        answers,
        kinds,
        pictures,
        torch.tensor(frames),
        torch.tensor(patches),
    )


def _mask(trees: np.ndarray, branches: np.ndarray, copies: np.ndarray) -> np.ndarray:
    """A token sees its tree's root (branch 0) and its own branch, up to itself.

    A patch that stands for n alike ones is seen n times as strongly: log n on its scores.
    """
    length = trees.shape[1]
    same_tree = trees[:, :, None] == trees[:, None, :]
    visible = (branches[:, None, :] == 0) | (branches[:, :, None] == branches[:, None, :])
    allowed = same_tree & visible & np.tril(np.ones((length, length), bool))
    return np.where(allowed, np.log(copies)[:, None, :], np.float32(-1e9))[:, None]
