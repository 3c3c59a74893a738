r"""Text that a grammar forces, in the tokens the tokenizer gives for the whole answer.

    answer      {"  name  ":"  Har  ry            forced   ","house":"
    together    {"  name  ":"  Harry  ","  house  ":"       canonical for the whole text
    jump                       ^^^^^  ^^^  ^^^^^            2 replaced, 3 come; ":" waits

The last tokens wait where text to come could change them: `":"` and a quote after it may be
one token. What could change them are tokens of the vocabulary that reach across the end of the
forced text; the tokenizer is asked with the text of each, and what it keeps is certain. Where
they are many, some are asked, and nothing stays that any of them reaches into.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Jump

__all__ = ["Canonical", "whole_characters"]

_OVERLAPS = (6, 24, 96)
"""Settled tokens that are tokenised again, to see that a cut before them changes nothing."""
_MAX_PROBES = 8


class Canonical:
    """Tokenises answers as a whole. Safe to use from any thread; never changes.

    Args:
        vocabulary: with a way to encode.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary.sorted_pieces), default=0)
        self._after: dict[bytes, int] = {}
        for piece in vocabulary.sorted_pieces:
            for size in range(1, len(piece)):
                start = piece[:size]
                self._after[start] = self._after.get(start, 0) | 1 << piece[size]
        """Beginnings of tokens, and as bits the bytes that come next in some token."""

    def jump(
        self,
        token_ids: Sequence[int],
        num_settled: int,
        more: bytes,
        follow: bytes | None,
        *,
        is_end: bool,
    ) -> Jump | None:
        """A jump over as much of the forced text as is certain, if any of it is.

        Args:
            token_ids: the answer so far.
            num_settled: so many of them are canonical, and stay.
            more: the forced text; with the answer it ends with a whole character.
            follow: bytes that may come after `more`; None for any.
            is_end: whether nothing comes after `more`.

        Pure. Cost: some runs of the tokenizer over what is not settled.
        """
        for first in _starts(num_settled):
            old = (*token_ids[first:],)
            text = self._spell(old)
            found = self._vocabulary.encode(text + more)
            num_same = _num_same(old, found or ())
            if found is not None and first + num_same >= num_settled:
                kept = found if is_end else self._certain(found, text, more, follow)
                if kept is None or len(kept) < num_same:
                    return None
                return Jump(len(old) - num_same, kept[num_same:], is_end)
        return None

    def _certain(
        self, found: tuple[int, ...], text: bytes, more: bytes, follow: bytes | None
    ) -> tuple[int, ...] | None:
        """The first of the found tokens that stay, if they spell more than the text."""
        whole = text + more
        kept = found[: self._num_certain(found, whole, follow)]
        while kept:
            end = len(self._spell(kept))
            if end <= len(text):
                return None
            if _is_apart(whole, end) or self._vocabulary.encode(whole[:end]) == kept:
                return kept
            kept = kept[:-1]
        return None

    def _num_certain(self, found: tuple[int, ...], whole: bytes, follow: bytes | None) -> int:
        """How many of the tokens of the whole stay, whatever comes after it."""
        num_certain = len(found)
        for order, (start, probe) in enumerate(self._reaching(whole, follow)):
            if order == _MAX_PROBES:
                return min(num_certain, self._num_before(found, start))
            longer = self._vocabulary.encode(whole + probe)
            num_certain = min(num_certain, _num_same(found, longer or ()))
            if not num_certain:
                break
        return num_certain

    def _reaching(self, whole: bytes, follow: bytes | None) -> Iterator[tuple[int, bytes]]:
        """Where tokens begin that reach past the whole, in order, and what they need there."""
        pieces = self._vocabulary.sorted_pieces
        may_follow = -1 if follow is None else sum(1 << byte for byte in follow)
        for start in range(max(0, len(whole) - self._longest + 1), len(whole)):
            tail = whole[start:]
            bits = self._after.get(tail, 0) & may_follow
            while bits:
                lowest = bits & -bits
                bits ^= lowest
                begin = tail + bytes((lowest.bit_length() - 1,))
                yield start, pieces[bisect_left(pieces, begin)][len(tail) :]

    def _num_before(self, found: tuple[int, ...], start: int) -> int:
        """Tokens that end at or before a byte."""
        end = 0
        for number, token_id in enumerate(found):
            end += len(self._vocabulary.pieces[token_id])
            if end > start:
                return number
        return len(found)

    def _spell(self, token_ids: Sequence[int]) -> bytes:
        return b"".join(self._vocabulary.pieces[one] for one in token_ids)


def _starts(num_settled: int) -> Iterator[int]:
    """Tokens from which to tokenise again: few, more, all; at last only what is not settled.

    The last one is for settled tokens that are not canonical, should there be such.
    """
    for overlap in _OVERLAPS:
        if overlap < num_settled:
            yield num_settled - overlap
    yield 0
    if num_settled:
        yield num_settled


def _num_same(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens at the start that are equal."""
    pairs = zip(one, other, strict=False)
    return next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _is_apart(whole: bytes, end: int) -> bool:
    """Whether the text before `end` surely has the same tokens by itself.

    Pre-tokenizers look ahead at blanks: the last of a run goes to the word behind it.
    """
    around = whole[end - 1 : end + 1]
    return end == len(whole) or all(0x20 < byte < 0x80 for byte in around)


def whole_characters(text: bytes) -> int:
    """Bytes of a text without the character it ends inside of, if it does. Pure."""
    for back in range(1, min(4, len(text)) + 1):
        byte = text[-back]
        if byte & 0xC0 == 0x80:
            continue
        width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return len(text) if width <= back else len(text) - back
    return len(text)
