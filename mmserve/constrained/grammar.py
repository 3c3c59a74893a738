"""Compiles constraints into matchers, once for each content."""

from __future__ import annotations

import functools
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from llguidance import LLMatcher

from mmserve.constrained.answer import AnswerMatcher
from mmserve.constrained.automaton import (
    Automaton,
    AutomatonParser,
    compile_choices,
    compile_regex,
)
from mmserve.constrained.ebnf import read_ebnf
from mmserve.constrained.healing import FreeParser, HealingParser
from mmserve.constrained.jump import Canonical
from mmserve.constrained.kept import KeptGrammar
from mmserve.constrained.llg import LlgEngine
from mmserve.constrained.parser import Parser
from mmserve.constrained.schemas import JSON_OPTIONS, Position, read_schema
from mmserve.constrained.unique import UniqueParser
from mmserve.constrained.vocabulary import Vocabulary
from mmserve.core import Constraint, ConstraintRefused, Matcher

__all__ = ["GrammarCompiler"]

_BASE_BYTES = 32_768
_BYTES_PER_CHARACTER = 256
_MAX_CHOICES_CHARACTERS = 1_000_000
_MAX_TRIED = 8


class _Sized(Protocol):
    @property
    def num_bytes(self) -> int: ...


@dataclass(slots=True, eq=False)
class _Compiled:
    """A parser at the start, to be forked, and what is held with it."""

    parser: Parser
    size: _Sized | int
    num_uses: int = 1

    @property
    def num_bytes(self) -> int:
        return self.size if isinstance(self.size, int) else self.size.num_bytes


class GrammarCompiler:
    """Turns constraints into matchers for one vocabulary; equal ones are compiled once.

    Regular expressions and choices run on the room's own automaton, JSON and grammars on
    llguidance. JSON is written compactly, without whitespace outside of strings, keys in the
    order of `properties`; numbers have at most 18 digits in a row. Safe to use from any thread.

    Args:
        pieces: bytes of every token by id; empty for ids that no token has.
        special_ids: tokens that never stand for text.
        eos_token_ids: tokens that may come exactly when the grammar may end.
        vocab_size: rows of the logits; ids past the pieces are never allowed.
        encode: canonical tokens of a text inside a prompt, for forced text; without it no text
            is forced.
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
        self._llg = LlgEngine(self._vocabulary)
        self._has_encode = encode is not None
        self._cache: OrderedDict[Constraint, _Compiled] = OrderedDict()
        self._cache_bytes = cache_bytes
        self._lock = threading.Lock()

    def compile(self, constraint: Constraint) -> Callable[[], Matcher]:
        """A maker of fresh matchers for the constraint.

        Raises:
            ConstraintRefused: it is not valid, cannot be enforced, or nothing satisfies it;
                fields: field, reason, and position or keyword.

        Cost: milliseconds for a new constraint, nothing for a known one.
        """
        return self._maker(self._compiled(constraint).parser)

    def cached(self, constraint: Constraint) -> Callable[[], Matcher] | None:
        """What `compile` gives, if the constraint is known. Changes: which was used last."""
        found = self._find(constraint)
        return None if found is None else self._maker(found.parser)

    def healing(self, constraint: Constraint | None, prefix: bytes) -> Callable[[], Matcher]:
        """Like `compile`, for answers whose tokens spell `prefix` first; None: any answer.

        Cost: as `compile`, and milliseconds for the first mask.
        """
        inner: Parser = FreeParser(self._vocabulary)
        if constraint is not None:
            inner = self._compiled(constraint).parser.fork()
        parser = HealingParser(self._vocabulary, prefix, inner)
        parser.allowed()
        return self._maker(parser)

    @property
    def used_bytes(self) -> int:
        """Bytes of compiled grammars kept, by estimate; masks that came since included."""
        with self._lock:
            return sum(one.num_bytes for one in self._cache.values())

    @property
    def num_entries(self) -> int:
        """Compiled grammars kept."""
        return len(self._cache)

    def kept(self) -> tuple[KeptGrammar, ...]:
        """The compiled grammars kept, the one used last first. Pure."""
        with self._lock:
            entries = [*reversed(self._cache.items())]
        return tuple(
            KeptGrammar(
                constraint,
                one.num_bytes,
                one.num_uses,
                one.size if isinstance(one.size, Automaton) else None,
            )
            for constraint, one in entries
        )

    def _compiled(self, constraint: Constraint) -> _Compiled:
        found = self._find(constraint)
        if found is None:
            _check_surrogates(constraint)
            found = self._compile(constraint)
            self._check_satisfiable(constraint, found)
            self._keep(constraint, found)
        return found

    def _find(self, constraint: Constraint) -> _Compiled | None:
        with self._lock:
            found = self._cache.get(constraint)
            if found is not None:
                self._cache.move_to_end(constraint)
                found.num_uses += 1
        return found

    @functools.cached_property
    def _canonical(self) -> Canonical | None:
        """Made with the first grammar, off the step loop: engines without one start sooner."""
        return Canonical(self._vocabulary) if self._has_encode else None

    def _maker(self, parser: Parser) -> Callable[[], Matcher]:
        canonical = self._canonical

        def make() -> Matcher:
            return AnswerMatcher(self._vocabulary, parser.fork(), canonical)

        return make

    def _keep(self, constraint: Constraint, compiled: _Compiled) -> None:
        with self._lock:
            self._cache[constraint] = compiled
            num_bytes = sum(one.num_bytes for one in self._cache.values())
            while num_bytes > self._cache_bytes and self._cache:
                _, gone = self._cache.popitem(last=False)
                num_bytes -= gone.num_bytes

    def _compile(self, constraint: Constraint) -> _Compiled:
        if constraint.kind == "regex":
            return _own(compile_regex(constraint.value, self._vocabulary))
        if constraint.kind == "choices":
            return _own(compile_choices(_options(constraint.value), self._vocabulary))
        is_json = constraint.kind in ("json_schema", "json_object")
        try:
            grammar, uniques = _grammar(constraint)
            parser: Parser = self._llg.parse(grammar, has_short_numbers=is_json)
        except ValueError as error:
            raise _refused(constraint, str(error)) from None
        if uniques:
            parser = UniqueParser(self._vocabulary, uniques, parser)
        return _Compiled(parser, _BASE_BYTES + _BYTES_PER_CHARACTER * len(grammar))

    @staticmethod
    def _has_token(parser: Parser) -> bool:
        """Whether some token of the first mask is accepted. Changes: nothing that lasts.

        Llguidance may allow tokens where the vocabulary cannot spell what has to come.
        """
        bits = np.unpackbits(parser.allowed().view(np.uint8), bitorder="little")
        for token_id in np.flatnonzero(bits)[:_MAX_TRIED].tolist():
            if parser.consume(token_id):
                parser.rollback(1)
                return True
        return False

    def _check_satisfiable(self, constraint: Constraint, compiled: _Compiled) -> None:
        parser = compiled.parser
        try:
            if parser.is_accepting or self._has_token(parser):
                return
        except ConstraintRefused as error:
            raise _refused(
                constraint, str(error.fields.get("detail") or error.message)
            ) from None
        raise ConstraintRefused(
            f"nothing the model can write satisfies the {constraint.kind}",
            field=constraint.kind,
            reason="unsatisfiable",
            position=0,
        )


def _own(automaton: Automaton) -> _Compiled:
    return _Compiled(AutomatonParser(automaton), automaton)


def _grammar(constraint: Constraint) -> tuple[str, tuple[Position, ...]]:
    """The constraint in llguidance's own form, and where arrays of unique items stand.

    Raises ValueError with the library's complaint.
    """
    if constraint.kind == "ebnf":
        return read_ebnf(constraint.value), ()
    value = '{"type": "object"}' if constraint.kind == "json_object" else constraint.value
    plain = read_schema(value)
    grammar = LLMatcher.grammar_from_json_schema(plain.text, overrides=JSON_OPTIONS)
    return grammar, plain.uniques


def _options(value: str) -> list[str]:
    """The options of `choices`, each once."""
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
    return list(dict.fromkeys(options))


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
