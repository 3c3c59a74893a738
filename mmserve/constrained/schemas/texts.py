"""What strings can be: patterns together, patterns left out, patterns that list names."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence

from llguidance import LLMatcher

from mmserve.constrained.charsets import Ranges, as_class, complement, merge
from mmserve.constrained.regex_syntax import write_tree
from mmserve.constrained.regex_tree import Chars, Concat, Either, Node, Repeat, read_search
from mmserve.constrained.schemas.facts import Facts, Text

__all__ = [
    "are_disjoint",
    "excludes",
    "is_empty_text",
    "listed_names",
    "other_names",
    "plain_names",
]

_MOST = 6
_PRINTABLE: Ranges = ((0x20, 0x7E),)
_ONE_LINE: Ranges = complement(((0x0A, 0x0D), (0x1C, 0x1E), (0x85, 0x85), (0x2028, 0x2029)))
_NAME = r"[A-Za-z0-9_@-]+"
_FEW_NAMES = re.compile(rf"\^(?:\((?:\?:)?({_NAME}(?:\|{_NAME})*)\)|({_NAME}))\$")


def is_empty_text(facts: Facts) -> bool:
    """Whether no string matches all patterns, by any reading; False if unsure. Pure."""
    exact = tuple(_widest(text) for text in facts.texts if text.is_exact)
    return len(exact) > 1 and are_disjoint(exact, facts.min_length, facts.max_length)


def excludes(facts: Facts, text: Text) -> bool:
    """Whether the strings of these facts never match another pattern. Pure."""
    if not text.is_exact or not facts.texts:
        return False
    patterns = (*(one.pattern for one in facts.texts), _widest(text))
    return are_disjoint(patterns, facts.min_length, facts.max_length)


def _widest(text: Text) -> str:
    """The pattern with a line break at the end, if Python lets `$` stand before one."""
    return rf"(?:{text.pattern})\n?" if "$" in text.written else text.pattern


@functools.lru_cache(maxsize=1024)
def are_disjoint(patterns: tuple[str, ...], least: int = 0, most: int | None = None) -> bool:
    """Whether no string of that many characters matches all the patterns; False if unsure.

    Only the first few patterns are looked at. Pure. Cost: a tenth of a millisecond, more for
    large patterns; known ones are remembered.
    """
    schema = {
        "type": "string",
        "minLength": least,
        **({} if most is None else {"maxLength": most}),
        "allOf": [{"type": "string", "pattern": f"^(?:{one})$"} for one in patterns[:_MOST]],
    }
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
    return LLMatcher.validate_grammar(grammar).startswith("Unsatisfiable schema")


def plain_names(pattern: str, *, is_ascii: bool) -> str | None:
    """The pattern for names on which all validators agree; None if there are none.

    They are of printable ASCII characters, or of all but line breaks. Pure.
    """
    found = _within(read_search(pattern), _PRINTABLE if is_ascii else _ONE_LINE)
    return None if found is None else write_tree(found)


def other_names(*, is_ascii: bool) -> str:
    """The pattern for names with a character that `plain_names` leaves out. Pure."""
    kept = _PRINTABLE if is_ascii else _ONE_LINE
    return f"(?s:.*){as_class(complement(kept))}(?s:.*)"


def _within(node: Node, kept: Ranges) -> Node | None:
    """The texts of a tree that only have some characters; None if there are none."""
    found: Node | None = None
    if isinstance(node, Chars):
        ranges = complement(merge((*complement(node.ranges), *complement(kept))))
        found = Chars(ranges) if ranges else None
    elif isinstance(node, Concat):
        parts = _all_within(node.parts, kept)
        found = Concat(parts) if len(parts) == len(node.parts) else None
    elif isinstance(node, Either):
        options = _all_within(node.options, kept)
        found = Either(options) if options else None
    elif isinstance(node, Repeat):
        body = _within(node.body, kept)
        if body is not None:
            found = Repeat(body, node.low, node.high)
        elif node.low == 0:
            found = Concat(())
    return found


def _all_within(nodes: Sequence[Node], kept: Ranges) -> tuple[Node, ...]:
    narrowed = (_within(node, kept) for node in nodes)
    return tuple(node for node in narrowed if node is not None)


def listed_names(pattern: str) -> tuple[str, ...]:
    """The names that a pattern such as `^(a|b)$` lists; empty for others. Pure."""
    found = _FEW_NAMES.fullmatch(pattern)
    return tuple((found[1] or found[2]).split("|")) if found else ()
