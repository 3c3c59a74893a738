"""Marks that survive a chat template, to tell what it writes from what users wrote.

A user's text goes through the template itself, so trims and tests act on the real text. Only
where it could be taken for control tokens does it carry a mark, unguessable and new for every
rendering:

    <|end|>          ->  <[b]|end|>       special token: cut apart
    </think>         ->  [a]</think>      other control token: kept whole, but marked as plain
    |> at an edge    ->  [b]|>            cannot complete a token with the template's text
    a picture        ->  [m3]             where the template has no place of its own for media
    end of open turn ->  [e]
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from mmserve.prompt.tokenizer import Stretch, Tokenizer

__all__ = ["Mark", "Marks", "Spellings"]


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark found in rendered text: its kind (one letter) and number."""

    kind: str
    number: int


def _cutter(spellings: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, spellings))) if spellings else None


class Spellings:
    """What texts may not spell, by how it is defused. Never changes.

    Args:
        tokenizer: whose control tokens to guard.
        media: spellings of the model's media placeholders, control tokens or not.
    """

    def __init__(self, tokenizer: Tokenizer, media: Iterable[str]) -> None:
        self.media = tuple(sorted(set(media), key=len, reverse=True))
        special = tokenizer.control_spellings(special=True)
        every = sorted({*special, *self.media}, key=len, reverse=True)
        hard = [text for text in every if len(text) > 1]
        soft = {*tokenizer.control_spellings(special=False), *every}.difference(hard)
        self.hard = _cutter(hard)
        self.media_only = _cutter(self.media)
        self.soft = _cutter(sorted(soft, key=len, reverse=True))
        self.heads = frozenset(text[:size] for text in hard for size in range(1, len(text)))
        self.tails = frozenset(text[size:] for text in hard for size in range(1, len(text)))
        self.longest = max(map(len, hard), default=0)


class Marks:
    """The marks of one rendering."""

    def __init__(self, spellings: Spellings) -> None:
        self._spellings = spellings
        # Plain characters, which neither JSON nor Python's way to write a text escapes.
        self._open, self._close = f"%{secrets.token_hex(8)}", "%"
        self._found = re.compile(f"{self._open}([a-z])([0-9]*){self._close}")

    def mark(self, kind: str, number: int = 0) -> str:
        """The text of one mark. Pure."""
        return f"{self._open}{kind}{number}{self._close}"

    def guard(self, text: str) -> str:
        """A user's text, marked so that nothing in it can become a control token. Pure."""
        cut = self._insert(text, self._spellings.hard, self.mark("b"), offset=1)
        cut = self._insert(cut, self._spellings.soft, self.mark("a"), offset=0)
        return self._guard_edges(cut)

    def guard_template(self, text: str) -> str:
        """Template text in a turn: control tokens count, media placeholders do not. Pure."""
        cut = self._insert(text, self._spellings.media_only, self.mark("b"), offset=1)
        return self._guard_edges(cut)

    def split(self, rendered: str) -> Iterator[str | Mark]:
        """Text and marks in order. Pure."""
        position = 0
        for match in self._found.finditer(rendered):
            yield rendered[position : match.start()]
            yield Mark(match[1], int(match[2] or 0))
            position = match.end()
        yield rendered[position:]

    def stretches(self, text: str) -> list[Stretch]:
        """Text between other marks as stretches; consumes marks of kind a and b. Pure."""
        found: list[Stretch] = []
        is_marked = False
        for piece in self.split(text):
            if isinstance(piece, Mark):
                is_marked = piece.kind == "a"
                continue
            soft = self._spellings.soft
            plain = soft.match(piece) if is_marked and soft is not None else None
            if plain:
                found.append(Stretch(plain[0]))
            found.append(Stretch(piece[plain.end() if plain else 0 :], is_template=True))
        return [stretch for stretch in found if stretch.text]

    @staticmethod
    def _insert(text: str, pattern: re.Pattern[str] | None, mark: str, *, offset: int) -> str:
        """Puts the mark into every match, overlapping ones too, after `offset` characters."""
        places = [0]
        match = pattern.search(text) if pattern else None
        while pattern and match:
            places.append(match.start() + offset)
            match = pattern.search(text, match.start() + 1)
        bounds = [*places, len(text)]
        return mark.join(text[start:end] for start, end in itertools.pairwise(bounds))

    def _guard_edges(self, text: str) -> str:
        body = text.strip()
        if not body:
            return text
        start = text.index(body[0])
        end = start + len(body)
        sizes = range(1, min(self._spellings.longest, len(body) + 1))
        if any(body[-size:] in self._spellings.heads for size in sizes):
            text = text[:end] + self.mark("b") + text[end:]
        if any(body[:size] in self._spellings.tails for size in sizes):
            text = text[:start] + self.mark("b") + text[start:]
        return text
