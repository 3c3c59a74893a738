r"""Grammars in GBNF or Lark, read before the library does.

The library turns GBNF into Lark, and reads what comes as regular expressions and by recursion:

    root ::= [^a&&b] "\u0041"     "&&" would be a set operation, the escape would be cut
    root ::= r0, r0 ::= r1, ...   thousands of them would end the process

So texts and classes are spelt anew here, and what is twice or too deep is refused by position.
"""

from __future__ import annotations

import re

from llguidance import grammar_from

from mmserve.core import ConstraintRefused

__all__ = ["read_ebnf"]

_MOST_NESTED = 1_000
"""Rules and the groups inside them; the library's recursion fails from about 2,500 on."""
_MOST_GROUPS = 100
_MOST_AND = 8
"""Signs of Lark's `&`; what the library spends doubles with each."""
_IS_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_COMMENT = re.compile(r"#[^\r\n]*")
_WORD = re.compile(r"[\w-]+")
_DEFINES = re.compile(r"[ \t]*::=")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", **{one: one for one in '"\\[]'}}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


def read_ebnf(text: str) -> str:
    """A grammar in the library's own form. Pure.

    Args:
        text: GBNF, or Lark if a line begins with `start:`.

    Raises:
        ConstraintRefused: a rule is defined twice, an escape or a class is none, rules and
            groups are nested too deeply, or too many terminals are joined by `&`; with
            `position`.
        ValueError: the library's complaint.
    """
    packed = _without_blank_lines(text)
    if _IS_LARK.search(packed):
        if "%json" in text:
            message = "the ebnf has %json, which would not be enforced as json_schema is"
            raise _refused(message, text.index("%json"))
        num_nested = text.count(":") + text.count("(") + text.count("[")
        if num_nested > _MOST_NESTED:
            raise _too_deep(0, num_nested)
        if text.count("&") > _MOST_AND:
            raise _refused(f"the ebnf has more than {_MOST_AND} signs &", text.index("&"))
        return grammar_from("ebnf", packed)
    return grammar_from("ebnf", _without_blank_lines(_Gbnf(text).respelt()))


def _without_blank_lines(text: str) -> str:
    """To look for the notation takes the square of them. Pure."""
    return "\n".join(line for line in text.split("\n") if line.strip())


class _Gbnf:
    """One pass over a text. Mutable.

    Args:
        text: the grammar.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._rules: set[str] = set()
        self._num_nested = 0
        self._depth = 0
        self._deepest = 0

    def respelt(self) -> str:
        """The text with the same meaning to the library. Changes: everything here."""
        parts: list[str] = []
        while self._at < len(self._text):
            parts.append(self._part())
        self._count_groups()
        return "".join(parts)

    def _part(self) -> str:
        start = self._at
        first = self._text[start]
        if first == '"':
            return self._literal()
        if first == "[":
            return self._character_class()
        if comment := _COMMENT.match(self._text, start):
            self._at = comment.end()
        elif word := _WORD.match(self._text, start):
            self._name(word[0])
            self._at = word.end()
            return "start-rule" if word[0] == "start" else word[0]
        else:
            self._group(first)
            self._at += 1
        return self._text[start : self._at]

    def _name(self, name: str) -> None:
        """Count a rule if it is defined here."""
        if not _DEFINES.match(self._text, self._at + len(name)):
            return
        if name in self._rules:
            raise _refused(f"the ebnf defines the rule {name[:50]!r} twice", self._at)
        self._rules.add(name)
        self._count_groups()
        self._num_nested += 1

    def _group(self, character: str) -> None:
        self._depth += (character == "(") - (character == ")")
        self._deepest = max(self._deepest, self._depth)
        if self._depth > _MOST_GROUPS:
            message = f"the ebnf is nested too deeply, limit {_MOST_GROUPS} groups"
            raise _refused(message, self._at)

    def _count_groups(self) -> None:
        """Close the rule before."""
        self._num_nested += self._deepest
        self._depth = self._deepest = 0
        if self._num_nested > _MOST_NESTED:
            raise _too_deep(self._at, self._num_nested)

    def _literal(self) -> str:
        start = self._at
        self._at += 1
        characters = []
        while not self._text.startswith('"', self._at):
            characters.append(_in_literal(self._character(start, "text")))
        self._at += 1
        return '"' + "".join(characters) + '"'

    def _character_class(self) -> str:
        start = self._at
        is_negated = self._text.startswith("^", start + 1)
        self._at += 1 + is_negated
        items = []
        while not self._text.startswith("]", self._at):
            position = self._at
            low = high = self._character(start, "class")
            if self._text.startswith("-", self._at) and not self._text.startswith(
                "]", self._at + 1
            ):
                self._at += 1
                high = self._character(start, "class")
            if high < low:
                raise _refused("the ebnf has a range that ends before it begins", position)
            items.append(_in_class(low) + (f"-{_in_class(high)}" if high > low else ""))
        self._at += 1
        if not items:
            raise _refused("the ebnf has a class without characters", start)
        return "[" + "^" * is_negated + "".join(items) + "]"

    def _character(self, start: int, what: str) -> str:
        """The next character of a text or class that began at `start`, escapes read."""
        text, position = self._text, self._at
        if position >= len(text):
            raise _refused(f"the ebnf has a {what} that does not end", start)
        if text[position] != "\\":
            self._at += 1
            return text[position]
        kind = text[position + 1 : position + 2]
        if kind in _ESCAPES:
            self._at += 2
            return _ESCAPES[kind]
        digits = text[position + 2 : position + 2 + _HEX_DIGITS.get(kind, 0)]
        if len(digits) < _HEX_DIGITS.get(kind, 1) or not re.fullmatch("[0-9a-fA-F]+", digits):
            raise _refused("the ebnf has a bad escape", position)
        number = int(digits, 16)
        if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
            raise _refused("the ebnf has an escape that is no character", position)
        self._at += 2 + len(digits)
        return chr(number)


def _in_literal(character: str) -> str:
    """A character of a text, as both notations spell it. Pure."""
    if character in '"\\':
        return "\\" + character
    return character if character >= " " else f"\\x{ord(character):02X}"


def _in_class(character: str) -> str:
    """A character of a class, without any other meaning there. Pure."""
    is_plain = character.isalnum() or character > "\x7f"
    return character if is_plain else f"\\x{ord(character):02X}"


def _refused(message: str, position: int) -> ConstraintRefused:
    return ConstraintRefused(
        f"{message} (at character {position})",
        field="ebnf",
        reason="invalid",
        position=position,
    )


def _too_deep(position: int, num_nested: int) -> ConstraintRefused:
    return ConstraintRefused(
        f"the ebnf has {num_nested:,} rules and nested groups, the limit is {_MOST_NESTED:,}",
        hint="make the grammar simpler",
        field="ebnf",
        reason="too_large",
        position=position,
    )
