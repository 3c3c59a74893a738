"""Seeded pictures, clips and questions, and the programs that ask them on any engine."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from PIL import Image

from benchmarks.models import byte_tokenizer

__all__ = [
    "Answers",
    "Ask",
    "Clip",
    "Item",
    "OneStep",
    "Picture",
    "Program",
    "Writer",
    "noise_picture",
]

Answers = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Picture:
    """An encoded picture."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Clip:
    """An encoded clip, of which `num_frames` are looked at."""

    content: bytes = field(repr=False)
    num_frames: int


Item = Picture | Clip | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One prompt (media and runs of token ids, behind a BOS) and how long its answer is."""

    ask_id: str
    items: tuple[Item, ...]
    num_answer: int

    @property
    def num_views(self) -> int:
        """Pictures, and frames of clips. Pure."""
        return sum(one.num_frames if isinstance(one, Clip) else 1 for one in self.media)

    @property
    def media(self) -> list[Picture | Clip]:
        """Pictures and clips in order. Pure."""
        return [item for item in self.items if not isinstance(item, tuple)]


class Program(Protocol):
    """Something that asks, reads the answers, and asks on."""

    def next_asks(self, answers: Answers) -> Sequence[Ask]:
        """What can be asked at once, given all answers so far by id; empty at the end. Pure."""
        ...


@dataclass(frozen=True, slots=True)
class OneStep:
    """All questions at once."""

    asks: tuple[Ask, ...]

    def next_asks(self, answers: Answers) -> Sequence[Ask]:
        """See `Program`."""
        return () if self.asks[0].ask_id in answers else self.asks


class Writer:
    """Draws questions of whole words, so that text and token ids say the same everywhere.

    Mutable: its generator moves on.

    Args:
        vocab_size: of `byte_tokenizer`.
        seed: of what is drawn.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._words = np.array(_whole_words(vocab_size))
        self._random = np.random.default_rng(seed)

    def words(self, num_tokens: int) -> tuple[int, ...]:
        """Token ids. Changes: the generator."""
        return tuple(map(int, self._random.choice(self._words, num_tokens)))

    def questions(self, count: int, num_tokens: int) -> list[tuple[int, ...]]:
        """Token ids of some questions; no two begin alike, so none of their KV is shared.

        Changes: the generator.
        """
        firsts = self._random.choice(self._words, count, replace=False)
        return [(int(first), *self.words(num_tokens - 1)) for first in firsts]

    def picture(self, side: int) -> Picture:
        """Coloured clouds, PNG. Changes: the generator."""
        return Picture(noise_picture(self._random, side))

    def number(self, low: int, high: int) -> int:
        """From [low, high). Changes: the generator."""
        return int(self._random.integers(low, high))


@functools.cache
def _whole_words(vocab_size: int) -> list[int]:
    """Tokens that are a blank and a word, and stay so whatever stands beside them. Pure."""
    tokenizer = byte_tokenizer(vocab_size)
    pieces = tokenizer.convert_ids_to_tokens(list(range(vocab_size)))
    words = {
        i: " " + piece[1:]
        for i, piece in enumerate(pieces)
        if piece[0] == "Ġ" and len(piece) > 2 and piece[1:].isalpha()
    }
    found = tokenizer(list(words.values()), add_special_tokens=False)["input_ids"]
    return [i for i, ids in zip(words, found, strict=True) if ids == [i]]


def noise_picture(random: np.random.Generator, side: int) -> bytes:
    """A PNG of `side` x `side` pixels with soft coloured clouds. Changes: the generator."""
    coarse = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()
