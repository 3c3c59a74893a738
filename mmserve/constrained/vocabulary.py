"""A model's tokens as bytes: which stand for text, which end an answer, what encodes what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["Vocabulary"]


class Vocabulary:
    """A model's tokens. Never changes.

    Args:
        pieces: bytes of every token by id; empty for ids that no token has.
        eos_token_ids: tokens that may come exactly when a grammar may end.
        vocab_size: rows of the logits; ids past the pieces are never allowed.
        special_ids: tokens that never stand for text.
        encode: canonical tokens of a text inside a prompt; without it nothing is tokenised.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        special_ids: frozenset[int] = frozenset(),
        encode: Callable[[str], Sequence[int]] | None = None,
    ) -> None:
        kept = list(pieces[:vocab_size])
        self.pieces = (*kept, *(b"" for _ in range(vocab_size - len(kept))))
        self.eos_token_ids = tuple(sorted({*eos_token_ids}))
        self.num_words = -(-vocab_size // 32)
        self.hidden_ids = frozenset(
            one for one in {*special_ids, *eos_token_ids} if one < vocab_size
        )
        self.text_pieces = tuple(
            b"" if number in self.hidden_ids else piece
            for number, piece in enumerate(self.pieces)
        )
        """As `pieces`, but empty for tokens that never stand for text."""
        self.ids: dict[bytes, tuple[int, ...]] = {}
        """Tokens by their text; most often one."""
        for number, piece in enumerate(self.text_pieces):
            if piece:
                self.ids[piece] = (*self.ids.get(piece, ()), number)
        self.sorted_pieces = sorted(self.ids)
        self.end_mask = self.mask(self.eos_token_ids)
        self.text_mask = self.mask(
            number for number, piece in enumerate(self.text_pieces) if piece
        )
        self._encode = encode

    @property
    def size(self) -> int:
        """Rows of the logits."""
        return len(self.pieces)

    def mask(self, token_ids: Iterable[int]) -> NDArray[np.uint32]:
        """Bitmask uint32 [num_words] of some tokens: bit t % 32 of word t // 32. Pure."""
        bits = np.zeros(self.num_words * 32, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return np.packbits(bits, bitorder="little").view("<u4")

    def encode(self, text: bytes) -> tuple[int, ...] | None:
        """Canonical tokens of a text whose bytes they spell, if there are any. Pure."""
        if self._encode is None:
            return None
        try:
            found = tuple(self._encode(text.decode()))
        except UnicodeDecodeError:
            return None
        spelt = b"".join(self.text_pieces[one] for one in found)
        return found if spelt == text else None
