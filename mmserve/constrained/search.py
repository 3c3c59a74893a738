r"""Where regular expressions first end in a text that grows, and where that match began.

patterns "an+|or"  --read-->  positions a n o r, which may follow which, which may be last
text     "s a n d"  --feed-->  live: a since 1, then n since 1: a match, [1, 3)

A live position keeps the leftmost start of all ways to it, so a character costs one turn over
the live positions, however the pattern is written: no text makes it slow.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmserve.constrained.charsets import Ranges
from mmserve.constrained.regex_tree import Chars, Concat, Either, Node, Repeat, read_stop
from mmserve.core import ConstraintRefused

__all__ = ["StopPatterns", "TextSearch", "compile_stops"]

_MAX_POSITIONS = 500
_MAX_STEPS = 4_000
"""Pairs of positions that may follow each other: a character takes at most about 1 ms."""
_MAX_KNOWN_CHARACTERS = 4096


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
            part = _Placer(pattern, self).place(read_stop(pattern))
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


class _Placer:
    """Gives the characters of a pattern their positions, and says what may follow what."""

    def __init__(self, pattern: str, into: StopPatterns) -> None:
        self._pattern = pattern
        self._into = into

    def place(self, node: Node) -> _Part:
        """A part for the node, with positions of its own. Changes: the positions."""
        if isinstance(node, Chars):
            position = self._into.new_position(node.ranges, self._pattern)
            return _Part(
                is_empty=False,
                is_empty_at_start=False,
                first={position: False},
                last=frozenset({position}),
            )
        if isinstance(node, Concat):
            part = _NOTHING
            for one in node.parts:
                part = self._then(part, self.place(one))
            return part
        if isinstance(node, Either):
            return functools.reduce(_either, map(self.place, node.options))
        return self._repeated(node) if isinstance(node, Repeat) else _START

    def _repeated(self, node: Repeat) -> _Part:
        """Each turn is placed again, since positions differ; an endless last turn loops."""
        part = _NOTHING
        for _ in range(node.low - (node.high is None)):
            part = self._then(part, self.place(node.body))
        if node.high is None:
            turn = self.place(node.body)
            self._into.join(turn.last, turn.first, self._pattern)
            return self._then(part, turn if node.low else _either(turn, _NOTHING))
        for _ in range(node.high - node.low):
            part = self._then(part, _either(self.place(node.body), _NOTHING))
        return part

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
