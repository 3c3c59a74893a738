"""One answer's place in its grammar, through llguidance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from mmserve.constrained.digits import DigitRun, DigitTable
from mmserve.core import Broken, ConstraintRefused

__all__ = ["GrammarMatcher", "Vocabulary"]

_MAX_FORCED = 256


class Vocabulary:
    """A model's tokens as llguidance wants them. Never changes.

    Args:
        pieces, eos_token_ids, vocab_size, special_ids, encode: as in `GrammarCompiler`.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        special_ids: frozenset[int],
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        kept = list(pieces[:vocab_size])
        self.pieces = (*kept, *(b"" for _ in range(vocab_size - len(kept))))
        self.eos_token_ids = tuple(sorted({*eos_token_ids}))
        self.num_words = -(-vocab_size // 32)
        hidden = {one for one in {*special_ids, *eos_token_ids} if one < vocab_size}
        self.end_mask = self._mask(self.eos_token_ids)
        self.text_mask = self._mask(
            number for number, one in enumerate(self.pieces) if one and number not in hidden
        )
        wrapper = _Wrapper(self.pieces, hidden, self.eos_token_ids[0], encode)
        self.tokenizer = LLTokenizer(
            wrapper, n_vocab=vocab_size, eos_token=list(self.eos_token_ids)
        )

    def _mask(self, token_ids: Iterable[int]) -> NDArray[np.uint32]:
        bits = np.zeros(self.num_words * 32, dtype=np.uint8)
        bits[list(token_ids)] = 1
        return np.packbits(bits, bitorder="little").view("<u4")


class _Wrapper(TokenizerWrapper):
    """What llguidance asks of a tokenizer: bytes of each token, tokens of forced bytes."""

    def __init__(  # the library's own __init__ would call the tokenizer to probe it
        self,
        pieces: Sequence[bytes],
        hidden: set[int],
        eos_token_id: int,
        encode: Callable[[str], Sequence[int]] | None,
    ) -> None:
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self.eos_token_id = eos_token_id
        self.special_token_ids = sorted(hidden)
        self.tokens = [
            b"\xff<%d>" % number if number in hidden else piece
            for number, piece in enumerate(pieces)
        ]
        self._pieces = pieces
        self._encode = encode
        self._ids = {
            piece: number
            for number, piece in enumerate(pieces)
            if piece and number not in hidden
        }
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Canonical tokens of a text; longest match where encoding would change its bytes."""
        content = text.encode() if isinstance(text, str) else text
        if self._encode is not None:
            found = list(self._encode(content.decode(errors="replace")))
            if b"".join(self._pieces[one] for one in found) == content:
                return found
        return self._greedy(content)

    def _greedy(self, content: bytes) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(content):
            for end in range(min(len(content), start + self._longest), start, -1):
                token_id = self._ids.get(content[start:end])
                if token_id is not None:
                    found.append(token_id)
                    start = end
                    break
            else:
                return found
        return found


class GrammarMatcher:
    """A `core.Matcher` over llguidance's parser.

    Args:
        vocabulary: the model's tokens.
        parser: a parser of its own at the beginning.
        guard: for JSON, the table and state that keep numbers short.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        parser: LLMatcher,
        guard: tuple[DigitTable, DigitRun] | None = None,
        accepted: Sequence[DigitRun] = (),
    ) -> None:
        self._vocabulary = vocabulary
        self._parser = parser
        self._guard = guard
        self._before = list(accepted)
        self._allowed: NDArray[np.uint32] | None = None

    def allowed(self) -> NDArray[np.uint32]:
        """See `core.Matcher`; end tokens may come exactly when the grammar may end. Pure.

        Raises:
            ConstraintRefused: the grammar became too complex, or no token of the vocabulary
                continues it; this answer cannot go on, others can.
        """
        if self._allowed is None:
            self._allowed = self._compute()
        return self._allowed

    def accept(self, token_id: int) -> None:
        """See `core.Matcher`. Changes: the state.

        Raises:
            Broken: the token was not allowed.
            ConstraintRefused: it was, but the grammar became too complex.
        """
        was_allowed = self._allowed is not None and self._holds(self._allowed, token_id)
        if not self._parser.consume_token(token_id):
            if was_allowed:
                raise self._dead_end()
            reason = self._parser.get_error()[:200]
            raise Broken(f"token {token_id} does not fit the grammar", reason=reason)
        if self._guard is not None:
            table, state = self._guard
            self._before.append(state)
            pieces = self._vocabulary.pieces
            is_end = token_id in self._vocabulary.eos_token_ids
            self._guard = (table, state if is_end else state.after(pieces[token_id]))
        self._allowed = None

    def rollback(self, num_tokens: int) -> None:
        """See `core.Matcher`. Changes: the state."""
        if num_tokens == 0:
            return
        if not self._parser.rollback(num_tokens):
            message = f"{num_tokens} tokens cannot be taken back"
            raise Broken(message, reason=self._parser.get_error()[:200])
        if self._guard is not None:
            self._guard = (self._guard[0], self._before[-num_tokens])
            del self._before[-num_tokens:]
        self._allowed = None

    def forced_tokens(self) -> tuple[int, ...]:
        """See `core.Matcher`; at most 256 at a time. Pure."""
        forced = self._parser.compute_ff_tokens()[:_MAX_FORCED]
        return tuple(forced[: self._parser.validate_tokens(forced)]) if forced else ()

    def fork(self) -> GrammarMatcher:
        """See `core.Matcher`. Pure."""
        parser = self._parser.deep_copy()
        copy = GrammarMatcher(self._vocabulary, parser, self._guard, self._before)
        copy._allowed = self._allowed
        return copy

    @property
    def is_finished(self) -> bool:
        """See `core.Matcher`."""
        return self._parser.is_stopped() or not self.may_continue

    @property
    def may_continue(self) -> bool:
        """Whether a token that is no end token may come."""
        return bool((self.allowed() & ~self._vocabulary.end_mask).any())

    def _compute(self) -> NDArray[np.uint32]:
        vocabulary = self._vocabulary
        if self._parser.is_stopped() and not self._parser.is_error():
            return vocabulary.end_mask
        computed = np.frombuffer(self._parser.compute_bitmask(), dtype="<u4")
        allowed = computed[: vocabulary.num_words] & vocabulary.text_mask
        if self._parser.is_accepting():
            allowed |= vocabulary.end_mask
        if self._guard is not None:
            allowed = self._guard[0].without_long_runs(allowed, self._guard[1])
        if self._parser.is_error() or not allowed.any():
            raise self._dead_end()
        return allowed

    def _dead_end(self) -> ConstraintRefused:
        return ConstraintRefused(
            "the answer cannot be continued under its grammar",
            reason="dead_end",
            detail=self._parser.get_error()[:200],
            hint="make the grammar simpler",
        )

    @staticmethod
    def _holds(mask: NDArray[np.uint32], token_id: int) -> bool:
        word = token_id // 32
        return word < len(mask) and bool(int(mask[word]) >> (token_id % 32) & 1)
