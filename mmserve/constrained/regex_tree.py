r"""Python's regular expressions as a small tree of our own, with the same meaning or refused.

The pattern is parsed by Python itself and read once from its tree, so nothing is understood
differently on the way; classes are sets of characters from here on:

    "^ab|\d$"  --parse-->  branch(begin, a, b | digit, end)  --read-->  Either(ab, [0-9..])

Anchors at the ends are met by matching the whole text, and vanish.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

from mmserve.constrained.charsets import (
    Ranges,
    category,
    complement,
    has_case,
    ignoring_case,
    merge,
)
from mmserve.core import ConstraintRefused

__all__ = [
    "Chars",
    "Concat",
    "Either",
    "Node",
    "Repeat",
    "TextBegin",
    "num_positions",
    "read_pattern",
    "read_search",
    "read_stop",
]

MAX_LENGTH = 32_768
MAX_NESTING = 100
MAX_POSITIONS = 20_000
_MAX_FOLDING = 1_000
"""Classes under `(?i)`, and one more for each 1,500 characters in them."""
_PARSING = threading.Lock()
_BEGIN = (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
_END = (op.AT_END, op.AT_END_STRING)
_LETTERS = {
    op.CATEGORY_DIGIT: "d",
    op.CATEGORY_NOT_DIGIT: "D",
    op.CATEGORY_SPACE: "s",
    op.CATEGORY_NOT_SPACE: "S",
    op.CATEGORY_WORD: "w",
    op.CATEGORY_NOT_WORD: "W",
}
_REFUSED = {
    op.ASSERT: ("look-around", ("(?=", "(?<=")),
    op.ASSERT_NOT: ("look-around", ("(?!", "(?<!")),
    op.GROUPREF: ("a back-reference", ("(?P=", *(rf"\{digit}" for digit in "123456789"))),
    op.GROUPREF_EXISTS: ("a conditional group", ("(?(",)),
    op.ATOMIC_GROUP: ("an atomic group", ("(?>",)),
    op.POSSESSIVE_REPEAT: ("a possessive repeat", ("*+", "++", "?+", "}+")),
    op.AT: ("an anchor or word boundary inside", (r"\b", r"\B", r"\A", r"\Z", "^", "$")),
}


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set; never an empty set."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts in order; none means the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """One of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """From `low` to `high` turns of the body; None is without end."""

    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class TextBegin:
    """Met only at the start of the text; only stop patterns have it."""


Node = Chars | Concat | Either | Repeat | TextBegin
_ParsedNode = tuple[Any, Any]
_ANY_TEXT = Repeat(Chars(complement(())), 0, None)


def read_pattern(pattern: str, *, field: str = "regex") -> Node:
    """The tree of exactly the texts that `re.fullmatch` accepts.

    Raises:
        ConstraintRefused: not a pattern, empty, too large, or with a feature that no automaton
            has (look-around, back-references, word boundaries); fields: position, reason.

    Pure.
    """
    return _Reader(pattern, field, is_search=False).read()


def read_search(pattern: str, *, field: str = "pattern") -> Node:
    r"""The tree of the texts in which JSON Schema's `pattern` finds a match.

    `\d` and `\w` are ASCII, as ECMAScript says, and their opposites exclude what is a digit or
    letter anywhere, so that validators of either reading agree. Raises as `read_pattern`. Pure.
    """
    return _Reader(pattern, field, is_search=True).read()


def read_stop(pattern: str, *, field: str = "stop_regex") -> Node:
    """The tree of a pattern's matches, with `TextBegin` where one must begin the text.

    Raises as `read_pattern`. Pure.
    """
    return _Reader(pattern, field, is_search=False, keeps_begin=True).read()


def num_positions(node: Node) -> int:
    """Characters and classes once repeats are written out; an endless one adds a turn. Pure."""
    if isinstance(node, Concat):
        return sum(map(num_positions, node.parts))
    if isinstance(node, Either):
        return sum(map(num_positions, node.options)) + 1
    if isinstance(node, Repeat):
        times = node.low + 1 if node.high is None else node.high
        return times * max(num_positions(node.body), 1)
    return 1


class _Reader:
    def __init__(
        self, pattern: str, field: str, *, is_search: bool, keeps_begin: bool = False
    ) -> None:
        self._pattern = pattern
        self._field = field
        self._is_search = is_search
        self._keeps_begin = keeps_begin
        self._known: dict[Any, Chars] = {}
        self._folding = 0

    def read(self) -> Node:
        if len(self._pattern) > MAX_LENGTH:
            length = len(self._pattern)
            self._refuse(f"has {length} characters, limit {MAX_LENGTH}", "too_large", 0)
        if not self._pattern and not self._is_search:
            self._refuse("is empty", "empty", 0)
        self._check_nesting()
        try:
            tree = self._parse()
            node = self._sequence(list(tree), tree.state.flags, begins=True, ends=True)
        except RecursionError:
            self._refuse("is nested too deeply", "too_large", 0)
        if num_positions(node) > MAX_POSITIONS:
            what = f"has more than {MAX_POSITIONS} characters with its repeats"
            self._refuse(what, "too_large", 0)
        return node

    def _check_nesting(self) -> None:
        depth = 0
        for position in _outside_classes(self._pattern):
            depth += {"(": 1, ")": -1}.get(self._pattern[position], 0)
            if depth > MAX_NESTING:
                what = f"is nested too deeply, limit {MAX_NESTING} groups"
                self._refuse(what, "too_large", position)

    def _parse(self) -> Any:  # noqa: ANN401 - re's own tree
        try:
            with _PARSING, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return parser.parse(self._pattern)
        except re.error as error:
            self._refuse(f"is not valid: {error.msg}", "syntax", error.pos or 0)
        except (OverflowError, ValueError) as error:
            self._refuse(f"is not valid: {error}", "syntax", 0)

    def _refuse(self, what: str, reason: str, position: int) -> NoReturn:
        raise ConstraintRefused(
            f"the {self._field} {what} (at character {position})",
            field=self._field,
            reason=reason,
            position=position,
        )

    def _refuse_feature(self, name: str, spellings: Sequence[str]) -> NoReturn:
        begin = int(self._pattern.startswith("^"))
        places = (
            position
            for position in _outside_classes(self._pattern, with_escapes=True)
            if position >= begin and self._pattern.startswith(tuple(spellings), position)
        )
        self._refuse(f"has {name}, which cannot be enforced", "unsupported", next(places, 0))

    def _sequence(
        self, nodes: list[_ParsedNode], flags: int, *, begins: bool = False, ends: bool = False
    ) -> Node:
        """Nodes in order; anchors at the ends of the text are met by matching all of it."""
        has_begin = has_end = False
        while begins and nodes and nodes[0][0] is op.AT and nodes[0][1] in _BEGIN:
            nodes, has_begin = nodes[1:], True
        while ends and nodes and nodes[-1][0] is op.AT and nodes[-1][1] in _END:
            nodes, has_end = nodes[:-1], True
        if has_begin and self._keeps_begin and flags & re.MULTILINE:
            self._refuse_feature("an anchor of lines", ("^",))
        is_inner = self._is_search and (len(nodes) != 1 or has_begin or has_end)
        if self._is_search and not is_inner:
            is_inner = nodes[0][0] not in (op.BRANCH, op.SUBPATTERN)
        last = len(nodes) - 1
        parts: list[Node] = []
        for order, node in enumerate(nodes):  # no comprehension: each would be a frame a group
            is_first, is_last = order == 0 and not is_inner, order == last and not is_inner
            part = self._node(node, flags, begins=begins and is_first, ends=ends and is_last)
            parts.append(part)
        if is_inner and begins and not has_begin:
            parts.insert(0, _ANY_TEXT)
        if is_inner and ends and not has_end:
            parts.append(_ANY_TEXT)
        if has_begin and self._keeps_begin:
            parts.insert(0, TextBegin())
        return parts[0] if len(parts) == 1 else Concat(tuple(parts))

    def _node(self, node: _ParsedNode, flags: int, *, begins: bool, ends: bool) -> Node:
        kind, value = node
        if kind is op.BRANCH:
            options = []
            for one in value[1]:
                options.append(self._sequence(list(one), flags, begins=begins, ends=ends))
            return Either(tuple(options))
        if kind is op.SUBPATTERN:
            _, added, removed, body = value
            inner = (flags | added) & ~removed
            return self._sequence(list(body), inner, begins=begins, ends=ends)
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = value
            most = None if high is op.MAXREPEAT else int(high)
            return _repeat(self._sequence(list(body), flags), int(low), most)
        if kind in _REFUSED:
            self._refuse_feature(*_REFUSED[kind])
        if kind not in (op.ANY, op.LITERAL, op.NOT_LITERAL, op.IN):
            self._refuse(f"has {kind}, which is unknown", "unsupported", 0)
        return self._characters(kind, value, flags)

    def _characters(self, kind: Any, value: Any, flags: int) -> Chars:  # noqa: ANN401
        """The class of a node; the same object for the same class, so that it is read once."""
        key = (kind, tuple(value) if kind is op.IN else value, flags)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Chars(self._ranges(kind, value, flags))
            if not found.ranges:
                self._refuse("has a class that no character is in", "empty_class", 0)
        return found

    def _ranges(self, kind: Any, value: Any, flags: int) -> Ranges:  # noqa: ANN401
        if kind is op.ANY:
            return complement(() if flags & re.DOTALL else ((10, 10),))
        if kind is op.LITERAL:
            return self._written([(value, None)], flags)
        items = value if kind is op.IN else [(op.NEGATE, None), (op.LITERAL, value)]
        return self._class(items, flags)

    def _class(self, items: Sequence[_ParsedNode], flags: int) -> Ranges:
        is_negated = items[0][0] is op.NEGATE
        written: list[tuple[int, int | None]] = []
        parts: list[tuple[int, int]] = []
        for kind, value in items[1:] if is_negated else items:
            if kind is op.CATEGORY:
                parts += self._category(_LETTERS[value], flags, is_negated=is_negated)
            else:
                written.append((value, None) if kind is op.LITERAL else value)
        ranges = merge([*parts, *self._written(written, flags)])
        return complement(ranges) if is_negated else ranges

    def _category(self, letter: str, flags: int, *, is_negated: bool) -> Ranges:
        is_ascii = bool(flags & re.ASCII)
        if self._is_search and letter in "dDwW":
            is_ascii = letter.islower() != is_negated
        return category(letter, is_ascii=is_ascii)

    def _written(self, items: Sequence[tuple[int, int | None]], flags: int) -> Ranges:
        """Characters (with None) and ranges of a class, with their other cases if need be."""
        ranges = merge((low, low if high is None else high) for low, high in items)
        if not flags & re.IGNORECASE or not items:
            return ranges
        if len(items) == 1 and items[0][1] is None and not has_case(items[0][0]):
            return ranges
        self._folding += 1 + sum(high - low for low, high in ranges) // 1_500
        if self._folding > _MAX_FOLDING:
            what = f"ignores the case of too many classes, limit {_MAX_FOLDING}"
            self._refuse(what, "too_large", 0)
        return ignoring_case(tuple(items), is_ascii=bool(flags & re.ASCII))


def _repeat(body: Node, low: int, high: int | None) -> Node:
    if high == 0 or body == Concat(()):
        return Concat(())
    return body if (low, high) == (1, 1) else Repeat(body, low, high)


def _outside_classes(pattern: str, *, with_escapes: bool = False) -> Iterator[int]:
    """Positions outside of classes whose character is not escaped; on wish backslashes too."""
    position, class_start = 0, -1
    while position < len(pattern):
        character = pattern[position]
        if class_start < 0 and (with_escapes or character != "\\"):
            yield position
        if character == "\\":
            position += 1
        elif character == "[" and class_start < 0:
            class_start = position + pattern.startswith("[^", position) + 1
            position = class_start - 1
        elif character == "]" and class_start >= 0 and position > class_start:
            class_start = -1
        position += 1
