"""Keeps the items of an array apart while it is written: what no grammar can say.

    {"tags":["a","b","a      <- the quote may not come, another letter may

Follows the text by the positions that `schemas` found, and takes tokens from the mask that end
an item which stands in the array already.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.items import NO_ITEM, State, TextReader
from mmserve.constrained.parser import Parser
from mmserve.constrained.schemas import Position
from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["UniqueParser"]

_OUTSIDE = re.compile(rb'[",\]}]|0$')
_BEHIND = re.compile(rb'"(?s:.*)[\]}]|"(?s:..)')


class UniqueParser:
    """A `Parser` that takes what another one takes, without repeated items.

    Args:
        vocabulary: the model's tokens.
        positions: where unique arrays stand.
        inner: at its start; its own from now on.
    """

    def __init__(
        self, vocabulary: Vocabulary, positions: Sequence[Position], inner: Parser
    ) -> None:
        self._vocabulary = vocabulary
        self._reader = TextReader(positions)
        self._inner = inner
        self._text = b""
        self._states: list[State] = [State()]

    def allowed(self) -> NDArray[np.uint32]:
        """See `Parser`. Pure.

        Cost: some 20 microseconds for each token that may end an item, if one may repeat.
        """
        allowed = self._inner.allowed()
        state = self._states[-1]
        if not state.is_watching:
            return allowed
        endings = allowed & self._endings(state)
        ids = np.flatnonzero(np.unpackbits(endings.view(np.uint8), bitorder="little"))
        repeated = [int(one) for one in ids if self._repeats(int(one))]
        return allowed & ~self._vocabulary.mask(repeated) if repeated else allowed

    def _endings(self, state: State) -> NDArray[np.uint32]:
        """The tokens that may end an item which another one equals."""
        endings = _endings(self._vocabulary)
        if state.string_begin == NO_ITEM:
            return endings.outside
        top = state.frames[-1]
        if not top.is_unique:
            return endings.of_parts
        begun = self._text[state.string_begin :]
        may_repeat = any(text.startswith(begun) for text in top.texts)
        return endings.of_strings if may_repeat else endings.of_parts

    def _repeats(self, token_id: int) -> bool:
        """Whether an item would repeat with this token, or would have to: a 0 has no more."""
        text = self._text + self._vocabulary.text_pieces[token_id]
        state = self._reader.read(self._states[-1], text)
        if state is None or not _is_second_zero(state, text):
            return state is None
        ahead = self.fork()
        return not ahead.consume(token_id) or not ahead.allowed().any()

    def consume(self, token_id: int) -> bool:
        """See `Parser`. Changes: the state."""
        text = self._text + self._vocabulary.text_pieces[token_id]
        state = self._reader.read(self._states[-1], text)
        if state is None or not self._inner.consume(token_id):
            return False
        self._text = text
        self._states.append(state)
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Parser`. Changes: the state."""
        if num_tokens:
            self._inner.rollback(num_tokens)
            del self._states[-num_tokens:]
            self._text = self._text[: self._states[-1].num_read]

    def forced(self) -> bytes:
        """See `Parser`. Pure."""
        forced = self._inner.forced()
        state = self._states[-1]
        for length in range(1, len(forced) + 1):
            found = self._reader.read(state, self._text + forced[:length])
            if found is None:
                return forced[: length - 1]
            state = found
        return forced

    def follow(self) -> bytes | None:
        """See `Parser`. Pure."""
        return self._inner.follow()

    def fork(self) -> UniqueParser:
        """See `Parser`. Pure."""
        copy = UniqueParser(self._vocabulary, (), self._inner.fork())
        copy._reader = self._reader
        copy._text = self._text
        copy._states = [*self._states]
        return copy

    @property
    def is_accepting(self) -> bool:
        """See `Parser`."""
        return self._inner.is_accepting

    @property
    def is_final(self) -> bool:
        """See `Parser`."""
        return self._inner.is_final


def _is_second_zero(state: State, text: bytes) -> bool:
    top = state.frames[-1] if state.frames else None
    return (
        top is not None
        and top.is_unique
        and 0 in top.seen
        and text[top.begin :] in (b"0", b"-0")
    )


@dataclass(frozen=True, slots=True)
class _Endings:
    """Masks of tokens that may end an item, uint32 [W] each.

    Args:
        outside: where no string is open.
        of_strings: in a string that is an item.
        of_parts: in another string, or one that equals no other: what goes on behind it.
    """

    outside: NDArray[np.uint32]
    of_strings: NDArray[np.uint32]
    of_parts: NDArray[np.uint32]


@functools.lru_cache(maxsize=4)
def _endings(vocabulary: Vocabulary) -> _Endings:
    pieces = [*enumerate(vocabulary.text_pieces)]
    return _Endings(
        vocabulary.mask(one for one, piece in pieces if _OUTSIDE.search(piece)),
        vocabulary.mask(one for one, piece in pieces if b'"' in piece),
        vocabulary.mask(one for one, piece in pieces if _BEHIND.search(piece)),
    )
