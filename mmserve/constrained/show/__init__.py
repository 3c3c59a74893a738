"""Grammars and answers as people see them.

Automaton -> graph (states, compressed ways) ----+-> text of 80 columns, or an SVG file
Matcher, who draws -> way (steps of an answer) --+
CompilePool -> what is kept, as either
"""

from mmserve.constrained.show.drawers import (
    check_followed,
    drawn_at_random,
    drawn_from,
    drawn_in_turn,
)
from mmserve.constrained.show.graph import Graph, graph_of
from mmserve.constrained.show.kept import draw_kept
from mmserve.constrained.show.picture import draw_picture
from mmserve.constrained.show.text import draw_text
from mmserve.constrained.show.way import Drawer, Way, walk

__all__ = [
    "Drawer",
    "Graph",
    "Way",
    "check_followed",
    "draw_kept",
    "draw_picture",
    "draw_text",
    "drawn_at_random",
    "drawn_from",
    "drawn_in_turn",
    "graph_of",
    "walk",
]
