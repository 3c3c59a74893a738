"""Our own engine for regex and choices: automata over bytes, with masks over tokens."""

from mmserve.constrained.automaton.automaton import Automaton
from mmserve.constrained.automaton.compile import compile_choices, compile_regex
from mmserve.constrained.automaton.explicit import ByteTable, byte_table
from mmserve.constrained.automaton.machine import Edge
from mmserve.constrained.automaton.parser import AutomatonParser

__all__ = [
    "Automaton",
    "AutomatonParser",
    "ByteTable",
    "Edge",
    "byte_table",
    "compile_choices",
    "compile_regex",
]
