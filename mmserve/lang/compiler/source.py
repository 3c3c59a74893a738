"""What the text of a program tells, without running it."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["MediaUse", "SourceFacts", "read_source"]


@dataclass(frozen=True, slots=True)
class MediaUse:
    """`image(parameter, ...)` or `video(parameter, ...)` somewhere in the body.

    Args:
        kind: which of the two.
        parameter: the argument that is shown.
        options: the call's other arguments, each a constant or the name of a parameter.
    """

    kind: Literal["image", "video"]
    parameter: str
    options: Mapping[str, ast.expr]

    def values(self, arguments: Mapping[str, object]) -> dict[str, object] | None:
        """The options under these arguments of the program; None if unknown. Pure."""
        values: dict[str, object] = {}
        for word, node in self.options.items():
            if isinstance(node, ast.Constant):
                values[word] = node.value
            elif isinstance(node, ast.Name) and node.id in arguments:
                values[word] = arguments[node.id]
            else:
                return None
        return values


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Parameters in the order in which they are first appended, and the media among them."""

    order: tuple[str, ...]
    media: tuple[MediaUse, ...] = ()


def read_source(function: Callable[..., object]) -> SourceFacts:
    """Facts of a program's function; those of its signature where the source is not at hand.

    Cost: parses the function once.
    """
    names = tuple(inspect.signature(function).parameters)[1:]
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return SourceFacts(names)
    appended = [name for name in _appended_names(tree) if name in names]
    media = tuple(use for use in _media_uses(tree) if use.parameter in names)
    return SourceFacts(tuple(dict.fromkeys((*appended, *names))), media)


def _appended_names(tree: ast.AST) -> Iterator[str]:
    for node in _in_order(tree):
        if isinstance(node, ast.AugAssign):
            for inner in _in_order(node.value):
                if isinstance(inner, ast.Name):
                    yield inner.id


def _media_uses(tree: ast.AST) -> Iterator[MediaUse]:
    for node in _in_order(tree):
        kind = _media_kind(node)
        if kind is None or not isinstance(node, ast.Call) or not node.args:
            continue
        first, *others = node.args
        words = ("num_frames",) if kind == "video" else ()
        if isinstance(first, ast.Name) and len(others) <= len(words):
            options = dict(zip(words, others, strict=False))
            options |= {item.arg: item.value for item in node.keywords if item.arg}
            yield MediaUse(kind, first.id, options)


def _media_kind(node: ast.AST) -> Literal["image", "video"] | None:
    called = node.func if isinstance(node, ast.Call) else None
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    if name == "image":
        return "image"
    return "video" if name == "video" else None


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, as they stand in the text. Pure."""
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _in_order(child)
