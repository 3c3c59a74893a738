r"""Python's regular expressions in the automaton's syntax, with the same meaning or refused.

The pattern is parsed by Python itself and written anew from the tree, character by character,
so nothing is read differently on the way:

    "^ab|\d$"  --parse-->  branch(begin, a, b | digit, end)  --write-->  "(?:ab|[0-9..])"
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NoReturn

from mmserve.constrained.charsets import (
    Ranges,
    as_class,
    case_variants,
    category,
    complement,
    find_ranges,
    merge,
)
from mmserve.core import ConstraintRefused

__all__ = ["translate_pattern", "translate_search", "translate_stop"]

_MAX_LENGTH = 32_768
_MAX_SIZE = 20_000
_PARSING = threading.Lock()
_ANY_TEXT = r"[\x{0}-\x{10ffff}]*"
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

_Node = tuple[Any, Any]


def translate_pattern(pattern: str, *, field: str = "regex") -> str:
    """A pattern for exactly the texts that `re.fullmatch` accepts.

    Raises:
        ConstraintRefused: not a pattern, empty, too large, or with a feature that no automaton
            has (look-around, back-references, word boundaries); fields: position, reason.

    Pure.
    """
    return _Writer(pattern, field, is_search=False).write()


def translate_search(pattern: str, *, field: str = "pattern") -> str:
    r"""A pattern for texts in which JSON Schema's `pattern` finds a match.

    `\d` and `\w` are ASCII, as ECMAScript says, and their opposites exclude what is a digit or
    letter anywhere, so that validators of either reading agree. Raises as `translate_pattern`.
    Pure.
    """
    return _Writer(pattern, field, is_search=True).write()


def translate_stop(pattern: str, *, field: str = "stop_regex") -> str:
    r"""A pattern for exactly the texts of its matches, `\A` where one must begin the text.

    Raises as `translate_pattern`. Pure.
    """
    return _Writer(pattern, field, is_search=False, keeps_begin=True).write()


class _Writer:
    def __init__(
        self, pattern: str, field: str, *, is_search: bool, keeps_begin: bool = False
    ) -> None:
        self._pattern = pattern
        self._field = field
        self._is_search = is_search
        self._keeps_begin = keeps_begin

    def write(self) -> str:
        if len(self._pattern) > _MAX_LENGTH:
            length = len(self._pattern)
            self._refuse(f"has {length} characters, limit {_MAX_LENGTH}", "too_large", 0)
        if not self._pattern and not self._is_search:
            self._refuse("is empty", "empty", 0)
        try:
            tree = self._parse()
            if _size(tree) > _MAX_SIZE:
                self._refuse(f"repeats too much, limit {_MAX_SIZE} characters", "too_large", 0)
            return self._sequence(list(tree), tree.state.flags, begins=True, ends=True)
        except RecursionError:
            self._refuse("is nested too deeply", "too_large", 0)

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
        position = _find_outside_classes(self._pattern, spellings)
        self._refuse(f"has {name}, which cannot be enforced", "unsupported", position)

    def _sequence(
        self, nodes: list[_Node], flags: int, *, begins: bool = False, ends: bool = False
    ) -> str:
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
        written = "".join(
            self._node(
                node,
                flags,
                begins=begins and order == 0 and not is_inner,
                ends=ends and order == last and not is_inner,
            )
            for order, node in enumerate(nodes)
        )
        if not is_inner:
            return rf"\A{written}" if has_begin and self._keeps_begin else written
        before = _ANY_TEXT if begins and not has_begin else ""
        after = _ANY_TEXT if ends and not has_end else ""
        return f"{before}{written}{after}"

    def _node(self, node: _Node, flags: int, *, begins: bool, ends: bool) -> str:
        kind, value = node
        if kind is op.BRANCH:
            branches = (
                self._sequence(list(one), flags, begins=begins, ends=ends) for one in value[1]
            )
            return f"(?:{'|'.join(branches)})"
        if kind is op.SUBPATTERN:
            _, added, removed, body = value
            inner = (flags | added) & ~removed
            return f"(?:{self._sequence(list(body), inner, begins=begins, ends=ends)})"
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = value
            most = "" if high is op.MAXREPEAT else int(high)
            return f"(?:{self._sequence(list(body), flags)}){{{int(low)},{most}}}"
        if kind in _REFUSED:
            self._refuse_feature(*_REFUSED[kind])
        if kind not in (op.ANY, op.LITERAL, op.NOT_LITERAL, op.IN):
            self._refuse(f"has {kind}, which is unknown", "unsupported", 0)
        ranges = self._characters(kind, value, flags)
        if not ranges:
            self._refuse("has a class that no character is in", "empty_class", 0)
        return as_class(ranges)

    def _characters(self, kind: Any, value: Any, flags: int) -> Ranges:  # noqa: ANN401
        if kind is op.ANY:
            return complement(() if flags & re.DOTALL else ((10, 10),))
        if kind is op.LITERAL and flags & re.IGNORECASE:
            return case_variants(chr(value), flags & re.ASCII)
        if kind is op.LITERAL:
            return merge([(value, value)])
        items = value if kind is op.IN else [(op.NEGATE, None), (op.LITERAL, value)]
        return self._class(items, flags)

    def _class(self, items: Sequence[_Node], flags: int) -> Ranges:
        is_negated = items[0][0] is op.NEGATE
        parts: list[tuple[int, int]] = []
        for kind, value in items[1:] if is_negated else items:
            if kind is op.CATEGORY:
                parts += self._category(_LETTERS[value], flags, is_negated=is_negated)
            else:
                low, high = (value, value) if kind is op.LITERAL else value
                parts += self._range(low, high, flags)
        ranges = merge(parts)
        return complement(ranges) if is_negated else ranges

    def _category(self, letter: str, flags: int, *, is_negated: bool) -> Ranges:
        is_ascii = bool(flags & re.ASCII)
        if self._is_search and letter in "dDwW":
            is_ascii = letter.islower() != is_negated
        return category(letter, is_ascii=is_ascii)

    @staticmethod
    def _range(low: int, high: int, flags: int) -> Ranges:
        if not flags & re.IGNORECASE:
            return ((low, high),)
        text = rf"[\U{low:08x}-\U{high:08x}]"
        return find_ranges(text, re.IGNORECASE | (flags & re.ASCII))


def _size(nodes: Any) -> int:  # noqa: ANN401 - re's own tree
    """Characters and classes once repeats are written out; an endless one adds one turn."""
    total = 0
    for kind, value in nodes:
        if kind is op.BRANCH:
            total += sum(map(_size, value[1])) + 1
        elif kind is op.SUBPATTERN:
            total += _size(value[3])
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, body = value
            times = low + 1 if high is op.MAXREPEAT else high
            total += int(times) * max(_size(body), 1)
        else:
            total += 1
    return total


def _find_outside_classes(pattern: str, spellings: Sequence[str]) -> int:
    """Where one of the spellings first stands, not escaped and not in a class; 0 if nowhere."""
    position, is_inside = int(pattern.startswith("^")), False
    while position < len(pattern):
        if not is_inside and pattern.startswith(tuple(spellings), position):
            return position
        if pattern[position] == "\\":
            position += 1
        elif pattern[position] in "[]":
            is_inside = pattern[position] == "["
        position += 1
    return 0
