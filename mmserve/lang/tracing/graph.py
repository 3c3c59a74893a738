"""What a traced program appends, as a graph.

state 0   text "Is it" - hole question - gen "a" - fork --------------- join - gen "c"
state 1                                              `- gen "b" --------'
"""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.core import BadRequest, UnknownVariable
from mmserve.lang.tracing.drawing import draw_svg, draw_text
from mmserve.lang.tracing.node import GraphNode
from mmserve.lang.tracing.placeholder import Placeholder

__all__ = ["Graph"]


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced program.

    Args:
        name: the program's name.
        nodes: what is appended, in the order of the body, forks included.
        variables: the node that sets each name in the program's own state.
        ret_value: what the body returned; parts may be placeholders.
    """

    name: str
    nodes: tuple[GraphNode, ...]
    variables: dict[str, GraphNode]
    ret_value: object = None

    @property
    def last_node(self) -> GraphNode | None:
        """The last node of the program's own state. Pure."""
        own = [node for node in self.nodes if node.state == 0]
        return own[-1] if own else None

    def __getitem__(self, name: str) -> Placeholder:
        """A placeholder for a variable, so that a traced program may call another one.

        Raises UnknownVariable.
        """
        if name not in self.variables:
            message = f"no statement sets {name!r}"
            raise UnknownVariable(message, name=name)
        return Placeholder(name)

    def draw(self, form: str = "text") -> str:
        """The graph for people: lines for 80 columns, or an SVG file. Pure.

        Raises BadRequest for another form.
        """
        if form == "text":
            return draw_text(self.name, self.nodes)
        if form == "svg":
            return draw_svg(self.name, self.nodes)
        message = f"form is {form!r}, allowed are text and svg"
        raise BadRequest(message, field="form", reason="value")

    def __str__(self) -> str:
        return self.draw()
