"""Turns the statements of traced states into nodes of one graph."""

from __future__ import annotations

import os
from collections.abc import Sequence

from mmserve.core import RawPart, TextPart
from mmserve.lang.execution import Execution, Statement
from mmserve.lang.ir import (
    Gen,
    Hole,
    Picture,
    Prepared,
    RoleBegin,
    RoleEnd,
    ScopeBegin,
    ScopeEnd,
    Select,
    Snapshot,
)
from mmserve.lang.tracing.node import GraphNode, Kind
from mmserve.lang.tracing.placeholder import Placeholder

__all__ = ["PrefixEnd", "Recorder"]


class PrefixEnd(BaseException):
    """The constant prefix has ended; not an Exception, so that bodies do not catch it."""


class Recorder:
    """A graph as it grows. Mutable; for one trace.

    Called with a state and a statement, it adds a node. With `is_prefix_only` it keeps what is
    appended to the first state instead, and raises PrefixEnd at the first call, unknown value
    or fork.
    """

    def __init__(self, *, is_prefix_only: bool = False) -> None:
        self.nodes: list[GraphNode] = []
        self.variables: dict[str, GraphNode] = {}
        self.prefix: list[Prepared | Picture] = []
        self._is_prefix_only = is_prefix_only
        self._tails: dict[Execution, GraphNode | None] = {}
        self._states: dict[Execution, int] = {}

    def __call__(self, execution: Execution, statement: Statement) -> None:
        """Add what is appended. Changes: the graph. Raises PrefixEnd."""
        node = statement.node
        if self._is_prefix_only:
            if _is_unknown(node):
                raise PrefixEnd
            self.prefix.append(node)
            return
        added = self._add(execution, *_described(node))
        for variable in statement.variables:
            if variable.name is not None:
                self._name(execution, variable.name, added)
        if isinstance(node, Snapshot):
            for child in execution.children:
                self._tails.setdefault(child, added)
                self._states.setdefault(child, len(self._states))

    def join(self, parent: Execution, children: Sequence[Execution]) -> None:
        """Children are joined into their parent. Changes: the graph."""
        tails = [self._tails.get(execution) for execution in (parent, *children)]
        joined = self._add(parent, "join", str(len(children)))
        before = tuple(dict.fromkeys(tail for tail in tails if tail is not None))
        node = GraphNode(joined.number, "join", joined.label, joined.state, before)
        self.nodes[-1] = self._tails[parent] = node
        for child in children:
            for name in child.declared:
                self._name(parent, name, node)

    def _add(self, execution: Execution, kind: Kind, label: str) -> GraphNode:
        state = self._states.setdefault(execution, len(self._states))
        tail = self._tails.get(execution)
        before = () if tail is None else (tail,)
        node = GraphNode(len(self.nodes), kind, label, state, before)
        self.nodes.append(node)
        self._tails[execution] = node
        return node

    def _name(self, execution: Execution, name: str, node: GraphNode) -> None:
        if self._states[execution] == 0:
            self.variables[name] = node


def _is_unknown(node: Prepared | Picture) -> bool:
    is_unknown_media = isinstance(node, Picture) and isinstance(node.source, Placeholder)
    return is_unknown_media or isinstance(node, (Hole, Gen, Select, Snapshot))


def _described(node: Prepared | Picture) -> tuple[Kind, str]:
    described: tuple[Kind, str] = ("turn", "")
    match node:
        case TextPart(text):
            described = "text", text
        case RawPart(text):
            described = "raw", text
        case Hole(name):
            described = "hole", name
        case Picture():
            described = node.kind, _source_name(node.source)
        case Gen():
            described = "gen", node.name or ""
        case Select():
            described = "select", f"{node.name or ''}: {' | '.join(node.choices)}"
        case RoleBegin(role) | RoleEnd(role):
            described = "turn", role if isinstance(node, RoleBegin) else f"end of {role}"
        case ScopeBegin(name) | ScopeEnd(name):
            described = "scope", name if isinstance(node, ScopeBegin) else f"end of {name}"
        case Snapshot():
            described = "fork", ""
    return described


def _source_name(source: object) -> str:
    if isinstance(source, Placeholder):
        hole = source.nodes[0]
        return f"<{hole.name}>" if isinstance(hole, Hole) else "<?>"
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)[:100]
    return type(source).__name__
