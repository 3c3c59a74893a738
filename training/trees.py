"""Conversations as token trees: pictures once, then many questions that do not see each other.

    root      <s><|user|><image>           one copy of the pictures' tokens
    branches  Q1<|end|><|assistant|>A1<|end|>
              Q2<|end|><|assistant|>A2<|end|><|user|>Q3<|end|><|assistant|>A3<|end|>

A branch sees the root and itself, at the positions it would have alone. So a picture costs its
tokens once for all its questions, and the loss equals that of separate conversations.
"""

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerFast

from mmserve.testing.scenes_questions import MAKERS, Question, compare_pictures, content
from mmserve.testing.scenes_stories import Story, ask_story
from mmserve.testing.scenes_words import place_words
from mmserve.testing.scenes_world import PLACES, Layout
from training.model import NUM_PATCHES
from training.tokenizer import SYSTEM_TEXTS

# How often each kind is asked at first; the harder ones more.
WEIGHTS = {
    "count": 1.0,
    "count_shape": 1.5,
    "count_colour": 2.0,
    "what_at": 2.0,
    "where": 4.0,
    "colour": 1.0,
    "shape": 1.0,
    "size": 1.0,
    "exists": 4.0,
    "number": 1.0,
    "compare_counts": 2.0,
    "follow_up": 1.5,
    "describe": 0.8,
}


Turn = tuple[str, str, str]  # question, answer, kind


@dataclass(slots=True)
class Branch:
    """Token ids, and the answers among them as (start, end, kind), the end mark included."""

    ids: list[int] = field(default_factory=list)
    answers: list[tuple[int, int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Tree:
    """A root and its branches.

    Root token n stands at position `positions[n]`; the branches start at `num_positions`.
    `pictures` are keys of the pictures in order of appearance, resolved by the caller; image
    token n of the root shows patch `patches[n][1]` of picture `patches[n][0]`. Root token n
    stands for `copies[n]` tokens.
    """

    root: list[int]
    positions: list[int]
    num_positions: int
    pictures: list[int]
    patches: list[tuple[int, int]]
    copies: list[int]
    branches: list[Branch] = field(default_factory=list)

    @property
    def num_asked(self) -> int:
        """Tokens of all branches."""
        return sum(len(branch.ids) for branch in self.branches)

    @property
    def num_tokens(self) -> int:
        """Tokens of the root and all branches."""
        return len(self.root) + self.num_asked


class Teller:
    """Turns questions into trees with one tokenizer.

    With `is_sparse`, only one patch of each cell is shown, at its true position, the other
    three being near copies (see packing.py for what makes up for them).
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, *, is_sparse: bool) -> None:
        self.is_sparse = is_sparse
        self.weights = dict(WEIGHTS)
        self._encode = functools.lru_cache(200_000)(
            lambda text: tuple(tokenizer.encode(text, add_special_tokens=False))
        )
        self.image_id = self.encode("<image>")[0]
        self.digit_ids = [self.encode(str(digit))[0] for digit in range(10)]

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of `text`, special tokens recognised, none added."""
        return self._encode(text)

    def refocus(self, shares: Mapping[str, float]) -> None:
        """Asks less of what is answered well: `shares` are exact answers by kind.

        Changes: `weights`.
        """
        for kind in WEIGHTS.keys() & shares.keys():
            self.weights[kind] = WEIGHTS[kind] * (0.15 + min(1.0, 3 * (1 - shares[kind])))

    def root(self, text: str, pictures: list[int], rng: random.Random) -> Tree:
        """A tree without branches; each `<image>` in `text` becomes patches of a picture."""
        tree = Tree([], [], 0, pictures, [], [])
        num_seen = 0
        for token in self.encode(text):
            if token != self.image_id:
                tree.root.append(token)
                tree.copies.append(1)
                tree.positions.append(tree.num_positions)
                tree.num_positions += 1
                continue
            shown = self._choose_patches(rng)
            tree.root += [token] * len(shown)
            tree.copies += [NUM_PATCHES // len(shown)] * len(shown)
            tree.positions += [tree.num_positions + patch for patch in shown]
            tree.num_positions += NUM_PATCHES
            tree.patches += [(num_seen, patch) for patch in shown]
            num_seen += 1
        return tree

    def _choose_patches(self, rng: random.Random) -> list[int]:
        if not self.is_sparse:
            return list(range(NUM_PATCHES))
        corners = [rng.choice((0, 1, 6, 7)) for _ in range(9)]
        return sorted(12 * (cell // 3) + 2 * (cell % 3) + c for cell, c in enumerate(corners))

    def grow(self, tree: Tree, turns: list[Turn]) -> None:
        """Adds a branch of turns.

        An empty first question means that the root holds the question. Changes: `tree`.
        """
        branch = Branch()
        for number, (question, answer, kind) in enumerate(turns):
            mark = "<|user|>" if number else ""
            branch.ids += self.encode(f"{mark}{question}<|end|><|assistant|>")
            start = len(branch.ids)
            branch.ids += self.encode(f"{answer}<|end|>")
            branch.answers.append((start, len(branch.ids), kind))
        tree.branches.append(branch)


def opening(rng: random.Random) -> str:
    """The start of a conversation up to the user's content; one in six has a system text."""
    system = ""
    if rng.random() < 1 / 6:
        system = f"<|system|>{rng.choice(SYSTEM_TEXTS)}<|end|>"
    return f"<s>{system}<|user|>"


def turns_of(question: Question) -> list[Turn]:
    """The history and the question itself as turns."""
    history = [(asked, answer, "history") for asked, answer in question.history]
    return [*history, (question.question, question.answer, question.kind)]


def ask(teller: Teller, layout: Layout, rng: random.Random) -> Question:
    """A question of a kind drawn by the teller's weights."""
    while True:
        kind = rng.choices(list(teller.weights), list(teller.weights.values()))[0]
        question = MAKERS[kind](layout, rng)
        if question:
            return question


def picture_tree(
    teller: Teller, layout: Layout, key: int, room: int, rng: random.Random
) -> Tree:
    """One picture and as many questions as fit in `room` tokens."""
    tree = teller.root(
        f"{opening(rng)}{rng.choice(('', '', '', 'picture 1:'))}<image>", [key], rng
    )
    while True:
        turns = turns_of(ask(teller, layout, rng))
        if rng.random() < 0.15:  # a longer talk about the same picture
            turns = turns_of(ask(teller, layout, rng)) + turns
        teller.grow(tree, turns)
        if tree.num_asked > room:
            return trim(tree)


def trim(tree: Tree) -> Tree:
    """Drops the last branch. Changes: `tree`."""
    tree.branches.pop()
    return tree


def late_picture_tree(teller: Teller, layout: Layout, key: int, rng: random.Random) -> Tree:
    """A question first and its picture after it."""
    (question, answer, kind), *rest = turns_of(ask(teller, layout, rng))
    tree = teller.root(f"{opening(rng)}{question}<image>", [key], rng)
    teller.grow(tree, [("", answer, kind), *rest])
    return tree


def pair_tree(
    teller: Teller,
    layouts: tuple[Layout, Layout],
    keys: list[int],
    room: int,
    rng: random.Random,
) -> Tree:
    """Two pictures and as many comparisons as fit in `room` tokens."""
    text = rng.choice(("<image><image>", "picture 1:<image>picture 2:<image>"))
    tree = teller.root(opening(rng) + text, keys, rng)
    while True:
        teller.grow(tree, turns_of(compare_pictures(*layouts, rng)))
        if tree.num_asked > room:
            return trim(tree)


def ask_frame(story: Story, rng: random.Random) -> Question:
    """An easier question about one frame, which teaches to find frames."""
    number = rng.randint(1, len(story.layouts))
    layout = story.layouts[number - 1]
    if rng.random() < 0.4:
        return Question(
            "frame", f"How many objects are in frame {number}?", str(len(layout.things))
        )
    place = rng.choice([*PLACES, story.actor.place, story.actor.place])
    asked = f"What is {place_words(place, rng)} in frame {number}?"
    return Question("frame", asked, content(layout, place))


def clip_tree(
    teller: Teller, story: Story, keys: list[int], room: int, rng: random.Random
) -> Tree:
    """A clip, frame by frame, and as many questions as fit in `room` tokens.

    One in ten has its question before the frames.
    """
    frames = "".join(f"frame {number}:<image>" for number in range(1, len(keys) + 1))
    if rng.random() < 0.1:
        question = rng.choice(ask_story(story, rng))
        tree = teller.root(f"{opening(rng)}{question.question}{frames}", keys, rng)
        teller.grow(tree, [("", question.answer, question.kind)])
        return tree
    tree = teller.root(opening(rng) + frames, keys, rng)
    while True:
        for question in (*ask_story(story, rng), ask_frame(story, rng), ask_frame(story, rng)):
            teller.grow(tree, turns_of(question))
            if tree.num_asked > room:
                return trim(tree)
