"""An answer's tokens on their way out: those that a jump may still replace wait.

    drawn         Har  ry  ",                          wait
    jump          2 replaced: Harry  ","  house        all of these are settled now
    text told     Har|ry|",                            the jump adds   "house   only

Text does not wait for this: replaced tokens spell what those that replace them begin with.
Where log-probabilities are wanted, a forced token waits for its own with its text, so that a
text that ends the answer never ends it amid tokens without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mmserve.core import Jump

__all__ = ["AnswerToken", "AnswerTokens"]

Top = tuple[tuple[int, float], ...]


@dataclass(slots=True)
class AnswerToken:
    """One token; a forced one gets its log-probability when its step has run.

    `piece` is what it adds to the text, nothing for a control token.
    """

    token_id: int
    piece: bytes
    logprob: float | None = None
    top: Top = ()
    is_forced: bool = False
    is_scored: bool = True


class AnswerTokens:
    """The tokens of one answer. Mutable; one per answer.

    Args:
        piece: text of a token.
        may_jump: whether tokens may be replaced by a later jump.
        is_scored: whether forced tokens wait for their log-probability.
    """

    def __init__(
        self, piece: Callable[[int], bytes], *, may_jump: bool, is_scored: bool
    ) -> None:
        self._piece = piece
        self._may_jump = may_jump
        self._is_scored = is_scored
        self._waiting: list[AnswerToken] = []
        self._num_out = 0
        self._num_settled = 0
        self.num_told = 0
        """Tokens whose text was told."""
        self.num_forced = 0
        """How many of those were forced."""
        self._num_bytes_replaced = 0

    def draw(self, token: AnswerToken) -> None:
        """Put a drawn token at the end. Changes: the tokens."""
        self._waiting.append(token)
        if not self._may_jump:
            self._num_settled = self._num_out + len(self._waiting)

    def jump(self, jump: Jump) -> None:
        """Replace the last tokens and add more. Changes: the tokens."""
        kept = len(self._waiting) - jump.num_replaced
        gone = self._waiting[kept : self.num_told - self._num_out]
        self._num_bytes_replaced += sum(len(token.piece) for token in gone)
        self.num_told -= len(gone)
        del self._waiting[kept:]
        self._waiting += (
            AnswerToken(
                token_id,
                self._piece(token_id),
                is_forced=True,
                is_scored=not self._is_scored,
            )
            for token_id in jump.token_ids
        )
        self._num_settled = self._num_out + len(self._waiting)

    def stop_jumps(self) -> None:
        """No more jumps come, so tokens wait for nothing. Changes: all are settled."""
        self._may_jump = False
        self._num_settled = self._num_out + len(self._waiting)

    def score(self, position: int, logprob: float, top: Top) -> None:
        """The log-probability of a forced token, by its place in the answer. Changes: it."""
        token = self._waiting[position - self._num_out]
        token.logprob, token.top, token.is_scored = logprob, top, True

    def tell(self) -> Iterator[tuple[int, bytes]]:
        """Text that was not told, for each token: its place and what it adds, if anything.

        Changes: it is told, as far as the iterator is read.
        """
        for token in self._waiting[self.num_told - self._num_out :]:
            if not token.is_scored:
                return
            num_known = min(len(token.piece), self._num_bytes_replaced)
            self._num_bytes_replaced -= num_known
            self.num_told += 1
            self.num_forced += token.is_forced
            yield self.num_told - 1, token.piece[num_known:]

    def take(self, *, is_last: bool = False) -> list[AnswerToken]:
        """Tokens that nothing changes any more, in order; at the end all that were told.

        Changes: they are out.
        """
        end = self.num_told if is_last else min(self.num_told, self._num_settled)
        num_ready = max(0, end - self._num_out)
        ready, self._waiting = self._waiting[:num_ready], self._waiting[num_ready:]
        self._num_out += num_ready
        return ready
