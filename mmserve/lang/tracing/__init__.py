"""Tracing: a program's body run on placeholders, as a graph of what it appends.

trace(program, known) -> body with a TracedState -> Graph: text, holes, media, calls, forks

No backend answers. A body that branches on a placeholder cannot be traced; the error names the
line. For `Program.trace`, `cache` and drawings of programs.
"""

from mmserve.lang.tracing.graph import Graph
from mmserve.lang.tracing.node import GraphNode
from mmserve.lang.tracing.trace import constant_prefix, is_tracing, trace

__all__ = ["Graph", "GraphNode", "constant_prefix", "is_tracing", "trace"]
