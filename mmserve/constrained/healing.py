r"""Answers that begin inside the prompt's last token, which is taken back and drawn again.

    prompt     "... see http" ":"            the last token is taken back
    answer     has to begin with ":"         ":"  "://"  ":\n"  and the like may come
    text       what stands behind that ":"   is the answer

So a prompt that ends amid what the model would write as one token does not confuse it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.parser import Parser
from mmserve.constrained.vocabulary import Vocabulary

__all__ = ["FreeParser", "HealingParser"]


class FreeParser:
    """A `Parser` for any text."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    def allowed(self) -> NDArray[np.uint32]:
        """See `Parser`. Pure."""
        return self._vocabulary.text_mask

    def consume(self, token_id: int) -> bool:
        """See `Parser`. Pure."""
        return bool(self._vocabulary.text_pieces[token_id])

    def rollback(self, num_tokens: int) -> None:
        """See `Parser`. Pure."""

    def forced(self) -> bytes:
        """See `Parser`. Pure."""
        return b""

    def follow(self) -> None:
        """See `Parser`. Pure."""

    def fork(self) -> FreeParser:
        """See `Parser`. Pure."""
        return self

    @property
    def is_accepting(self) -> bool:
        """See `Parser`."""
        return True

    @property
    def is_final(self) -> bool:
        """See `Parser`."""
        return False


class HealingParser:
    """A `Parser` for a text and then what another parser takes.

    Args:
        vocabulary: the model's tokens.
        prefix: the text; not empty.
        inner: at its start; its own from now on.
        taken: for each token so far, bytes of the prefix and inner tokens that it stands for.
        masks: shared by copies: by how much of the prefix is read, while some is left.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        prefix: bytes,
        inner: Parser,
        taken: Sequence[tuple[int, int]] = (),
        masks: dict[int, NDArray[np.uint32]] | None = None,
    ) -> None:
        self._vocabulary = vocabulary
        self._prefix = prefix
        self._inner = inner
        self._taken = list(taken)
        self._num_read = sum(num_bytes for num_bytes, _ in taken)
        self._masks = {} if masks is None else masks

    def allowed(self) -> NDArray[np.uint32]:
        """See `Parser`. Pure. Cost: milliseconds once while some of the prefix is left."""
        rest = self._prefix[self._num_read :]
        if not rest:
            return self._inner.allowed()
        found = self._masks.get(self._num_read)
        if found is None:
            found = self._masks[self._num_read] = self._vocabulary.mask(self._fitting(rest))
        return found

    def consume(self, token_id: int) -> bool:
        """See `Parser`. Changes: the state."""
        rest = self._prefix[self._num_read :]
        piece = self._vocabulary.text_pieces[token_id]
        if not piece or not (rest.startswith(piece) or piece.startswith(rest)):
            return False
        if not rest:
            if not self._inner.consume(token_id):
                return False
            self._taken.append((0, 1))
            return True
        num_inner = self._consume_text(piece[len(rest) :])
        if num_inner is None:
            return False
        num_bytes = min(len(rest), len(piece))
        self._taken.append((num_bytes, num_inner))
        self._num_read += num_bytes
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Parser`. Changes: the state."""
        for _ in range(num_tokens):
            num_bytes, num_inner = self._taken.pop()
            self._num_read -= num_bytes
            self._inner.rollback(num_inner)

    def forced(self) -> bytes:
        """See `Parser`. Pure."""
        return self._prefix[self._num_read :] + self._inner.forced()

    def follow(self) -> bytes | None:
        """See `Parser`. Pure."""
        rest = self._prefix[self._num_read :]
        return rest[:1] if rest else self._inner.follow()

    def fork(self) -> HealingParser:
        """See `Parser`. Pure."""
        inner = self._inner.fork()
        return HealingParser(self._vocabulary, self._prefix, inner, self._taken, self._masks)

    @property
    def is_accepting(self) -> bool:
        """See `Parser`."""
        return self._num_read == len(self._prefix) and self._inner.is_accepting

    @property
    def is_final(self) -> bool:
        """See `Parser`."""
        return self._num_read == len(self._prefix) and self._inner.is_final

    def _fitting(self, rest: bytes) -> Iterator[int]:
        """Tokens that begin the rest of the prefix, or go on behind it."""
        ids = self._vocabulary.ids
        for size in range(1, len(rest) + 1):
            yield from ids.get(rest[:size], ())
        pieces = self._vocabulary.sorted_pieces
        for place in range(bisect_left(pieces, rest), len(pieces)):
            piece = pieces[place]
            if not piece.startswith(rest):
                return
            num_inner = self._consume_text(piece[len(rest) :])
            if num_inner is not None:
                self._inner.rollback(num_inner)
                yield from ids[piece]

    def _consume_text(self, text: bytes) -> int | None:
        """Tokens by which the inner parser went on over a text; None, and no change, if not."""
        num_consumed = 0
        while text:
            sizes = range(len(text), 0, -1)
            first = next((text[:k] for k in sizes if text[:k] in self._vocabulary.ids), b"")
            if not first or not self._inner.consume(self._vocabulary.ids[first][0]):
                self._inner.rollback(num_consumed)
                return None
            num_consumed += 1
            text = text[len(first) :]
        return num_consumed
