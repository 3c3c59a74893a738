"""Llguidance behind the room's port: JSON schemas, JSON objects and grammars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from mmserve.constrained.digits import DigitRun, DigitTable
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import ConstraintRefused

__all__ = ["LlgEngine", "LlgParser"]

_STEP_FUEL = 1_000_000
"""Bounds the lexer's work for one mask; spent at about 14,000 a millisecond."""
_STEP_ITEMS = 4_000
"""Bounds the parser's work for one mask, about 50 ms; ambiguous grammars need ever more."""


class LlgEngine:
    """What the library makes of one vocabulary. Safe to use from any thread.

    Args:
        vocabulary: the model's tokens.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.digits = DigitTable(vocabulary.pieces, vocabulary.num_words)
        wrapper = _Wrapper(vocabulary)
        self._tokenizer = LLTokenizer(
            wrapper, n_vocab=vocabulary.size, eos_token=list(vocabulary.eos_token_ids)
        )
        self._limits = LLParserLimits(
            verbose_errors=False, step_lexer_fuel=_STEP_FUEL, step_max_items=_STEP_ITEMS
        )

    def parse(self, grammar: str, *, has_short_numbers: bool = False) -> LlgParser:
        """A parser at the start of a grammar in the library's own form.

        Args:
            grammar: from the library's `grammar_from_...`.
            has_short_numbers: keep runs of digits outside of strings short, as for JSON.

        Raises ValueError with the library's complaint. Cost: milliseconds.
        """
        core = LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if core.is_error():
            raise ValueError(core.get_error())
        return LlgParser(self, core, DigitRun() if has_short_numbers else None)


class _Wrapper(TokenizerWrapper):
    """What the library asks of a tokenizer: bytes of each token, tokens of forced bytes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        # The library's own __init__ would call the tokenizer to probe it.
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self.eos_token_id = vocabulary.eos_token_ids[0]
        self.special_token_ids = sorted(vocabulary.hidden_ids)
        self.tokens = [
            b"\xff<%d>" % number if number in vocabulary.hidden_ids else piece
            for number, piece in enumerate(vocabulary.pieces)
        ]
        self._vocabulary = vocabulary
        self._longest = max(map(len, vocabulary.ids), default=0)

    def __call__(self, text: str | bytes) -> list[int]:
        """Canonical tokens of a text; longest match where encoding would change its bytes."""
        content = text.encode() if isinstance(text, str) else text
        found = self._vocabulary.encode(content)
        return self._greedy(content) if found is None else list(found)

    def _greedy(self, content: bytes) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(content):
            for end in range(min(len(content), start + self._longest), start, -1):
                token_ids = self._vocabulary.ids.get(content[start:end])
                if token_ids is not None:
                    found.append(token_ids[0])
                    start = end
                    break
            else:
                return found
        return found


class LlgParser:
    """A `Parser` over the library's matcher.

    Args:
        engine: of the same vocabulary.
        core: the library's matcher, its own from now on.
        run: for JSON, how many digits stand at the end of the text.
        runs: the same before each token consumed.
    """

    def __init__(
        self,
        engine: LlgEngine,
        core: LLMatcher,
        run: DigitRun | None = None,
        runs: Sequence[DigitRun] = (),
    ) -> None:
        self._engine = engine
        self._core = core
        self._run = run
        self._runs = list(runs)

    def allowed(self) -> NDArray[np.uint32]:
        """See `Parser`. Pure. Raises ConstraintRefused if it became too complex."""
        vocabulary = self._engine.vocabulary
        if self._core.is_stopped() and not self._core.is_error():
            return np.zeros(vocabulary.num_words, dtype="<u4")
        computed = np.frombuffer(self._core.compute_bitmask(), dtype="<u4")
        if self._core.is_error():
            raise self._too_complex()
        allowed = computed[: vocabulary.num_words] & vocabulary.text_mask
        if self._run is None:
            return allowed
        may_end = self._core.is_accepting()
        return self._engine.digits.without_long_runs(allowed, self._run, may_end=may_end)

    def consume(self, token_id: int) -> bool:
        """See `Parser`. Changes: the state.

        Raises ConstraintRefused if the token may come and what follows is too complex.
        """
        if not self._core.validate_tokens([token_id]):
            return False
        if not self._core.consume_token(token_id):
            raise self._too_complex()
        if self._run is not None:
            self._runs.append(self._run)
            self._run = self._run.after(self._engine.vocabulary.pieces[token_id])
        return True

    def rollback(self, num_tokens: int) -> None:
        """See `Parser`. Changes: the state."""
        if not num_tokens:
            return
        self._core.rollback(num_tokens)
        if self._run is not None:
            self._run = self._runs[-num_tokens]
            del self._runs[-num_tokens:]

    def forced(self) -> bytes:
        """See `Parser`. Pure."""
        return self._core.compute_ff_bytes()

    def follow(self) -> None:
        """See `Parser`; the library would have to compute a mask to say. Pure."""

    def fork(self) -> LlgParser:
        """See `Parser`. Pure."""
        return LlgParser(self._engine, self._core.deep_copy(), self._run, self._runs)

    @property
    def is_accepting(self) -> bool:
        """See `Parser`."""
        return self._core.is_accepting()

    @property
    def is_final(self) -> bool:
        """See `Parser`."""
        return self._core.is_stopped() and not self._core.is_error()

    def _too_complex(self) -> ConstraintRefused:
        return ConstraintRefused(
            "the answer cannot be continued under its grammar",
            reason="dead_end",
            detail=self._core.get_error()[:200],
            hint="make the grammar simpler",
        )
