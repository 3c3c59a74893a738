"""One answer's place in its grammar: what may come, what has to, and when it may end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmserve.constrained.jump import Canonical, whole_characters
from mmserve.constrained.parser import Parser
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Broken, ConstraintRefused, Jump

__all__ = ["AnswerMatcher"]

_MAX_FORCED = 1024
"""Most bytes looked ahead for one jump."""
_FEW_OPEN = 48
"""So many tokens are tokenised again whenever text is forced."""


class AnswerMatcher:
    """A `core.Matcher` over a parser of either engine.

    Args:
        vocabulary: the model's tokens.
        parser: at the end of the text of `token_ids`; its own from now on.
        canonical: tokenises forced text; None: no jumps.
        token_ids: tokens accepted so far, without end tokens.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        parser: Parser,
        canonical: Canonical | None,
        token_ids: Sequence[int] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._parser = parser
        self._canonical = canonical
        self._token_ids = list(token_ids)
        self._num_ends = 0
        self._num_failed = 0
        """Tokens that were not settled when forced text last was of no use."""

    def allowed(self) -> NDArray[np.uint32]:
        """See `core.Matcher`; end tokens may come exactly when the grammar may end. Pure.

        Raises:
            ConstraintRefused: the grammar became too complex, or no token of the vocabulary
                continues it; this answer cannot go on, others can.
        """
        if self._num_ends:
            return self._vocabulary.end_mask
        allowed = self._parser.allowed()
        if self._parser.is_accepting:
            return allowed | self._vocabulary.end_mask
        if not allowed.any():
            raise ConstraintRefused(
                "no token of the model continues the answer under its grammar",
                reason="dead_end",
                hint="make the grammar simpler",
            )
        return allowed

    def accept(self, token_id: int) -> None:
        """See `core.Matcher`. Changes: the state.

        Raises:
            Broken: the token was not allowed.
            ConstraintRefused: it was, but the grammar became too complex.
        """
        if token_id in self._vocabulary.eos_token_ids:
            if not self._num_ends and not self._parser.is_accepting:
                raise Broken(f"end token {token_id} does not fit the grammar")
            self._num_ends += 1
            return
        if self._num_ends or not self._parser.consume(token_id):
            raise Broken(f"token {token_id} does not fit the grammar")
        self._token_ids.append(token_id)

    def rollback(self, num_tokens: int) -> None:
        """See `core.Matcher`. Changes: the state."""
        num_ends = min(num_tokens, self._num_ends)
        self._num_ends -= num_ends
        num_left = num_tokens - num_ends
        if num_left > len(self._token_ids):
            raise Broken(f"{num_tokens} tokens cannot be taken back")
        if num_left:
            self._parser.rollback(num_left)
            del self._token_ids[-num_left:]

    def jump(self, num_settled: int = 0, most: int | None = None) -> Jump | None:
        """See `core.Matcher`. Changes: nothing but when it tries again.

        Cost: microseconds without forced text, else some runs of the tokenizer on what is not
        settled; where that is long and nothing came of it, it waits until there is more.
        """
        num_open = len(self._token_ids) - num_settled
        if _FEW_OPEN < num_open < self._num_failed * 5 // 4:
            return None
        forced = self._forced()
        jump = self._over(forced, num_settled) if forced else None
        self._num_failed = num_open if forced and jump is None else 0
        if jump is None or most is None or len(jump.token_ids) <= most:
            return jump
        return self._cut(jump, most)

    def fork(self) -> AnswerMatcher:
        """See `core.Matcher`. Pure."""
        copy = AnswerMatcher(
            self._vocabulary, self._parser.fork(), self._canonical, self._token_ids
        )
        copy._num_ends, copy._num_failed = self._num_ends, self._num_failed
        return copy

    @property
    def is_finished(self) -> bool:
        """See `core.Matcher`."""
        return bool(self._num_ends) or self._parser.is_final

    def _forced(self) -> bytes:
        """Bytes that must come, as far as they make whole characters with the answer."""
        if self._canonical is None or self._num_ends:
            return b""
        forced = self._parser.forced()[:_MAX_FORCED]
        if not forced:
            return b""
        tail = b"".join(self._vocabulary.pieces[one] for one in self._token_ids[-3:])
        return forced[: max(0, whole_characters(tail + forced) - len(tail))]

    def _over(self, forced: bytes, num_settled: int) -> Jump | None:
        ahead = self._look_ahead(forced)
        if ahead is None or self._canonical is None:
            return None
        follow, is_end = ahead
        return self._canonical.jump(self._token_ids, num_settled, forced, follow, is_end=is_end)

    def _look_ahead(self, forced: bytes) -> tuple[bytes | None, bool] | None:
        """Bytes that may come after the forced text, and whether it ends the answer.

        None if no tokens spell the forced text. Changes: nothing that lasts.
        """
        tokens = self._vocabulary.encode(forced)
        if tokens is None:
            return None
        num_consumed = 0
        try:
            for token_id in tokens:
                if not self._parser.consume(token_id):
                    return None
                num_consumed += 1
            return self._parser.follow(), self._parser.is_final
        finally:
            self._parser.rollback(num_consumed)

    def _cut(self, jump: Jump, most: int) -> Jump | None:
        """The first tokens of a jump, if they spell more than those they replace."""
        kept = jump.token_ids[: max(most, 0)]
        gone = self._token_ids[len(self._token_ids) - jump.num_replaced :]
        pieces = self._vocabulary.pieces
        if sum(len(pieces[one]) for one in kept) <= sum(len(pieces[one]) for one in gone):
            return None
        return Jump(jump.num_replaced, kept)
