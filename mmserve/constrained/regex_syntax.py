r"""Python's regular expressions in the syntax of Rust's regex crate, with the same meaning.

"^ab|\d$"  --read-->  Either(ab, [0-9..])  --write-->  "(?:\x{61}\x{62}|[\x{30}-\x{39}..])"
"""

from __future__ import annotations

from mmserve.constrained.charsets import as_class
from mmserve.constrained.regex_tree import (
    Chars,
    Concat,
    Either,
    Node,
    Repeat,
    read_search,
)

__all__ = ["translate_search", "write_tree"]


def translate_search(pattern: str, *, field: str = "pattern") -> str:
    r"""A pattern for texts in which JSON Schema's `pattern` finds a match.

    `\d` and `\w` are ASCII, as ECMAScript says, and their opposites exclude what is a digit or
    letter anywhere, so that validators of either reading agree. Raises as `read_search`. Pure.
    """
    return write_tree(read_search(pattern, field=field))


def write_tree(node: Node) -> str:
    """A tree as a pattern for the whole text. Pure."""
    if isinstance(node, Chars):
        return as_class(node.ranges)
    if isinstance(node, Concat):
        return "".join(map(write_tree, node.parts))
    if isinstance(node, Either):
        return f"(?:{'|'.join(map(write_tree, node.options))})"
    if isinstance(node, Repeat):
        most = "" if node.high is None else node.high
        return f"(?:{write_tree(node.body)}){{{node.low},{most}}}"
    raise TypeError(node)
