"""Compiles constraints into matchers, once for each content."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence

from llguidance import LLMatcher, LLParserLimits, grammar_from

from mmserve.constrained.charsets import as_class
from mmserve.constrained.digits import DigitRun, DigitTable
from mmserve.constrained.matcher import GrammarMatcher, Vocabulary
from mmserve.constrained.regex_syntax import translate_pattern
from mmserve.constrained.schema import read_schema
from mmserve.core import Constraint, ConstraintRefused, Matcher

__all__ = ["GrammarCompiler"]

_STEP_FUEL = 1_000_000
"""Bounds one mask; the library's own measure, spent at about 14,000 a millisecond."""
_BASE_BYTES = 32_768
_BYTES_PER_CHARACTER = 256
_MAX_CHOICES_CHARACTERS = 1_000_000


class GrammarCompiler:
    """Turns constraints into matchers for one vocabulary; equal ones are compiled once.

    JSON is written compactly, without whitespace outside of strings, keys in the order of
    `properties`; numbers have at most 18 digits in a row. Safe to use from any thread.

    Args:
        pieces: bytes of every token by id; empty for ids that no token has.
        special_ids: tokens that never stand for text.
        eos_token_ids: tokens that may come exactly when the grammar may end.
        vocab_size: rows of the logits; ids past the pieces are never allowed.
        encode: canonical tokens of a text inside a prompt, for forced text; without it forced
            text is cut by longest match.
        cache_bytes: most bytes of compiled grammars kept, by estimate.

    Changes: its cache.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        eos_token_ids: Sequence[int],
        vocab_size: int,
        special_ids: frozenset[int] = frozenset(),
        encode: Callable[[str], Sequence[int]] | None = None,
        cache_bytes: int = 64 << 20,
    ) -> None:
        self._vocabulary = Vocabulary(
            pieces,
            eos_token_ids=eos_token_ids,
            vocab_size=vocab_size,
            special_ids=special_ids,
            encode=encode,
        )
        self._digits = DigitTable(self._vocabulary.pieces, self._vocabulary.num_words)
        self._limits = LLParserLimits(verbose_errors=False, step_lexer_fuel=_STEP_FUEL)
        self._cache: OrderedDict[Constraint, tuple[GrammarMatcher, int]] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Callable[[], Matcher]:
        """A maker of fresh matchers for the constraint.

        Raises:
            ConstraintRefused: it is not valid, cannot be enforced, or nothing satisfies it;
                fields: field, reason, and position or keyword.

        Cost: milliseconds for a new constraint, nothing for a known one.
        """
        with self._lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
        if found is None:
            found = self._compile(constraint)
            self._keep(constraint, *found)
        return found[0].fork

    @property
    def used_bytes(self) -> int:
        """Bytes of compiled grammars kept, by estimate."""
        return self._used_bytes

    def _keep(self, constraint: Constraint, matcher: GrammarMatcher, num_bytes: int) -> None:
        with self._lock:
            if constraint in self._cache or num_bytes > self._cache_bytes:
                return
            self._cache[constraint] = (matcher, num_bytes)
            self._used_bytes += num_bytes
            while self._used_bytes > self._cache_bytes:
                _, (_, freed) = self._cache.popitem(last=False)
                self._used_bytes -= freed

    def _compile(self, constraint: Constraint) -> tuple[GrammarMatcher, int]:
        _check_surrogates(constraint)
        is_json = constraint.kind in ("json_schema", "json_object")
        grammar = _grammar(constraint)
        core = LLMatcher(self._vocabulary.tokenizer, grammar, log_level=0, limits=self._limits)
        if core.is_error():
            raise _refused(constraint, core.get_error())
        guard = (self._digits, DigitRun()) if is_json else None
        matcher = GrammarMatcher(self._vocabulary, core, guard)
        if not core.is_accepting() and not matcher.may_continue:
            raise ConstraintRefused(
                f"nothing satisfies the {constraint.kind}",
                field=constraint.kind,
                reason="unsatisfiable",
                position=0,
            )
        return matcher, _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar)


def _grammar(constraint: Constraint) -> str:
    """The constraint in llguidance's own form."""
    if constraint.kind == "regex":
        return LLMatcher.grammar_from_regex(translate_pattern(constraint.value))
    if constraint.kind == "choices":
        return LLMatcher.grammar_from_regex(_choices_pattern(constraint.value))
    if constraint.kind == "ebnf":
        try:
            return grammar_from("ebnf", constraint.value)
        except ValueError as error:
            raise _refused(constraint, str(error)) from None
    value = '{"type": "object"}' if constraint.kind == "json_object" else constraint.value
    try:
        return LLMatcher.grammar_from_json_schema(
            read_schema(value), overrides={"whitespace_flexible": False}
        )
    except ValueError as error:
        raise _refused(constraint, str(error)) from None


def _choices_pattern(value: str) -> str:
    try:
        options = json.loads(value)
    except ValueError as error:
        raise _refused_choices(f"choices is not JSON: {error}", "syntax") from None
    if not isinstance(options, list) or not all(isinstance(one, str) for one in options):
        raise _refused_choices("choices must be a list of texts", "type")
    if not options:
        raise _refused_choices("choices is empty", "empty")
    if sum(map(len, options)) > _MAX_CHOICES_CHARACTERS:
        message = f"choices hold more than {_MAX_CHOICES_CHARACTERS} characters"
        raise _refused_choices(message, "too_large")
    if any("\ud800" <= character <= "\udfff" for one in options for character in one):
        raise _refused_choices("choices hold half of a surrogate pair", "surrogate")
    return "|".join(
        "".join(as_class(((ord(character), ord(character)),)) for character in one)
        for one in dict.fromkeys(options)
    )


def _refused_choices(message: str, reason: str) -> ConstraintRefused:
    return ConstraintRefused(message, field="choices", reason=reason, position=0)


def _check_surrogates(constraint: Constraint) -> None:
    try:
        constraint.value.encode()
    except UnicodeEncodeError as error:
        raise ConstraintRefused(
            f"the {constraint.kind} holds half of a surrogate pair at character {error.start}",
            field=constraint.kind,
            reason="surrogate",
            position=error.start,
        ) from None


def _refused(constraint: Constraint, message: str) -> ConstraintRefused:
    """Llguidance's complaint in one line."""
    first = " ".join(message.split())[:200]
    return ConstraintRefused(
        f"the {constraint.kind} cannot be enforced: {first}",
        field=constraint.kind,
        reason="invalid",
        position=0,
    )
