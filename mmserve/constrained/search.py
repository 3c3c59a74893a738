r"""Where regular expressions first end in a text that grows, and where that match began.

patterns "an+|or"  --read-->  positions a n o r, which may follow which, which may be last
text     "s a n d"  --feed-->  live: a since 1, then n since 1: a match, [1, 3)

A live position keeps the leftmost start of all ways to it, so a character costs one turn over
the live positions, however the pattern is written: no text makes it slow.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmserve.constrained.charsets import Ranges
from mmserve.constrained.regex_syntax import translate_stop
from mmserve.core import ConstraintRefused

__all__ = ["StopPatterns", "TextSearch", "compile_stops"]

_MAX_POSITIONS = 500
_MAX_STEPS = 4_000
"""Pairs of positions that may follow each other: a character takes at most about 1 ms."""
_MAX_KNOWN_CHARACTERS = 4096
_TOKEN = re.compile(r"\\A|\\x\{[0-9a-f]+\}|\[[^\]]*\]|\(\?:|[|)]|\{\d+,\d*\}")
_RANGE = re.compile(r"\\x\{([0-9a-f]+)\}(?:-\\x\{([0-9a-f]+)\})?")


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of a pattern: may it be empty (anywhere, at the text's start), and its ends.

    `first` says for each position that may come first whether only at the text's start.
    """

    is_empty: bool
    is_empty_at_start: bool
    first: dict[int, bool]
    last: frozenset[int]


_NOTHING = _Part(is_empty=True, is_empty_at_start=True, first={}, last=frozenset())
_START = _Part(is_empty=False, is_empty_at_start=True, first={}, last=frozenset())


class StopPatterns:
    """Compiled patterns, shared by all answers that they may end. Not changed once read."""

    def __init__(self) -> None:
        self.first: dict[int, bool] = {}
        self.follow: list[set[int]] = []
        self.ends: dict[int, str] = {}
        self._classes: list[Ranges] = []
        self._num_steps = 0
        self._known: dict[str, frozenset[int]] = {}

    def search(self) -> TextSearch:
        """A search from the start of a text. Pure."""
        return TextSearch(self)

    def matching(self, character: str) -> frozenset[int]:
        """Positions that `character` may stand at. Changes: what is remembered of it."""
        found = self._known.get(character)
        if found is None:
            code = ord(character)
            found = frozenset(k for k, one in enumerate(self._classes) if _holds(one, code))
            if len(self._known) < _MAX_KNOWN_CHARACTERS:
                self._known[character] = found
        return found

    def add(self, pattern: str) -> None:
        """Read one more pattern. Raises ConstraintRefused. Changes: the positions."""
        try:
            part = _Reader(translate_stop(pattern), pattern, self).read()
        except RecursionError:
            raise _too_large(pattern) from None
        self.first |= part.first
        for position in part.last:
            self.ends[position] = pattern

    def new_position(self, ranges: Ranges, pattern: str) -> int:
        """A place for one character in `ranges`. Changes: the positions."""
        if len(self._classes) >= _MAX_POSITIONS:
            raise _too_large(pattern)
        self._classes.append(ranges)
        self.follow.append(set())
        return len(self._classes) - 1

    def join(self, before: Iterable[int], after: Iterable[int], pattern: str) -> None:
        """Let each of `after` follow each of `before`. Changes: what follows."""
        followers = set(after)
        for position in before:
            old = len(self.follow[position])
            self.follow[position] |= followers
            self._num_steps += len(self.follow[position]) - old
        if self._num_steps > _MAX_STEPS:
            raise _too_large(pattern)


class TextSearch:
    """The first match in one text, fed character by character. Mutable; one per answer."""

    def __init__(self, patterns: StopPatterns) -> None:
        self._patterns = patterns
        self._live: dict[int, int] = {}
        self._num_read = 0

    @property
    def start(self) -> int | None:
        """Where the leftmost match that may still be completed begins. Pure."""
        return min(self._live.values(), default=None)

    def feed(self, character: str) -> tuple[int, str] | None:
        """The leftmost match that ends with `character`, as its start and pattern.

        Empty matches do not count. Changes: the search.
        """
        patterns, here = self._patterns, self._num_read
        self._num_read += 1
        allowed = patterns.matching(character)
        new: dict[int, int] = {}
        for position, start in self._live.items():
            for follower in patterns.follow[position] & allowed:
                new[follower] = min(start, new.get(follower, start))
        for position, is_at_start in patterns.first.items():
            if position in allowed and not (is_at_start and here):
                new.setdefault(position, here)
        self._live = new
        ends = patterns.ends
        found = [(start, position) for position, start in new.items() if position in ends]
        if not found:
            return None
        start, position = min(found)
        return start, ends[position]


def compile_stops(patterns: Sequence[str]) -> StopPatterns:
    """Patterns that end an answer, to be searched for together.

    `$` at the end of a pattern is met at every character, as the text so far ends there.

    Raises:
        ConstraintRefused: not a pattern, empty, too large, or with a feature that no automaton
            has (look-around, back-references, word boundaries); fields: position, reason.

    Pure.
    """
    compiled = StopPatterns()
    for pattern in patterns:
        compiled.add(pattern)
    return compiled


class _Reader:
    """Reads what `translate_stop` writes: classes, groups, branches, counts, the start."""

    def __init__(self, written: str, pattern: str, into: StopPatterns) -> None:
        self._tokens = _TOKEN.findall(written)
        self._at = 0
        self._pattern = pattern
        self._into = into

    def read(self) -> _Part:
        """The whole pattern. Changes: the positions."""
        return self._branches()

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _branches(self) -> _Part:
        part = self._sequence()
        while self._peek() == "|":
            self._at += 1
            part = _either(part, self._sequence())
        return part

    def _sequence(self) -> _Part:
        part = _NOTHING
        while self._peek() not in ("", "|", ")"):
            part = self._then(part, self._counted())
        return part

    def _counted(self) -> _Part:
        """One piece; with a count it is read again for each copy, since positions differ."""
        begin = self._at
        part = self._atom()
        end = self._at
        if not self._peek().startswith("{"):
            return part
        low, _, high = self._peek()[1:-1].partition(",")
        for _ in range(1, int(low)):
            self._at = begin
            part = self._then(part, self._atom())
        if int(low) == 0:
            part = _NOTHING if high == "0" else _either(part, _NOTHING)
        if not high:
            part = self._endless(part, begin) if int(low) > 1 else self._looped(part)
        for _ in range(max(int(low), 1), int(high or 0)):
            self._at = begin
            part = self._then(part, _either(self._atom(), _NOTHING))
        self._at = end + 1
        return part

    def _endless(self, part: _Part, begin: int) -> _Part:
        self._at = begin
        return self._then(part, _either(self._looped(self._atom()), _NOTHING))

    def _looped(self, part: _Part) -> _Part:
        self._into.join(part.last, part.first, self._pattern)
        return part

    def _atom(self) -> _Part:
        token = self._peek()
        self._at += 1
        if token == r"\A":
            return _START
        if token == "(?:":
            part = self._branches()
            self._at += 1
            return part
        ranges = tuple(
            (int(low, 16), int(high or low, 16)) for low, high in _RANGE.findall(token)
        )
        position = self._into.new_position(ranges, self._pattern)
        return _Part(
            is_empty=False,
            is_empty_at_start=False,
            first={position: False},
            last=frozenset({position}),
        )

    def _then(self, one: _Part, two: _Part) -> _Part:
        self._into.join(one.last, (k for k, at in two.first.items() if not at), self._pattern)
        first = dict(one.first)
        if one.is_empty_at_start:
            for position, is_at_start in two.first.items():
                first[position] = is_at_start or not one.is_empty
        return _Part(
            is_empty=one.is_empty and two.is_empty,
            is_empty_at_start=one.is_empty_at_start and two.is_empty_at_start,
            first=first,
            last=two.last | one.last if two.is_empty else two.last,
        )


def _either(one: _Part, two: _Part) -> _Part:
    return _Part(
        is_empty=one.is_empty or two.is_empty,
        is_empty_at_start=one.is_empty_at_start or two.is_empty_at_start,
        first={**one.first, **two.first},
        last=one.last | two.last,
    )


def _holds(ranges: Ranges, code: int) -> bool:
    place = bisect_right(ranges, (code, 0x110000)) - 1
    return place >= 0 and ranges[place][0] <= code <= ranges[place][1]


def _too_large(pattern: str) -> ConstraintRefused:
    return ConstraintRefused(
        f"the stop_regex {pattern!r:.60} is too large, limit {_MAX_POSITIONS} characters",
        field="stop_regex",
        reason="too_large",
        position=0,
    )
