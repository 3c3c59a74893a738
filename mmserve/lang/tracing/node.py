"""One node of a traced program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["GraphNode", "Kind"]

Kind = Literal[
    "text", "raw", "hole", "image", "video", "gen", "select", "turn", "scope", "fork", "join"
]


@dataclass(frozen=True, eq=False, slots=True)
class GraphNode:
    """One thing appended.

    Args:
        number: position in the order of the body.
        kind: what it is.
        label: text, name or role.
        state: 0 for the program's own state, others for forks, numbered as they are made.
        prevs: what comes right before it; a join has one for each child.
    """

    number: int
    kind: Kind
    label: str
    state: int
    prevs: tuple[GraphNode, ...] = field(default=(), repr=False)

    def print_graph_dfs(self) -> str:
        """The lines of all nodes up to this one, each behind what it depends on. Pure."""
        return "\n".join(str(node) for node in self.ancestry()) + "\n"

    def ancestry(self) -> Iterator[GraphNode]:
        """This node and all before it, each after what it depends on. Pure."""
        seen: set[int] = set()
        stack: list[tuple[GraphNode, bool]] = [(self, False)]
        while stack:
            node, is_ready = stack.pop()
            if is_ready:
                yield node
            elif node.number not in seen:
                seen.add(node.number)
                stack.append((node, True))
                stack.extend((prev, False) for prev in reversed(node.prevs))

    def __str__(self) -> str:
        before = ", ".join(f"%{prev.number}" for prev in self.prevs)
        return (
            f"%{self.number} = {self.kind}({self.label!r}) of state {self.state} <- [{before}]"
        )
