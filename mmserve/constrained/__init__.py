"""Regex, choices, JSON Schema and grammars to the set of tokens that may come next.

Owns compiled grammars. What cannot be enforced is refused before anything runs, naming the
keyword or position. Called by `engine` (compiles off the step loop) and, through
`core.Matcher`, by `sched`.

    Constraint --GrammarCompiler--> Matcher: allowed  accept  jump  rollback  fork
"""

from mmserve.constrained.grammar import GrammarCompiler
from mmserve.constrained.pool import CompileCounts, CompilePool, Compiler, NewMatcher
from mmserve.constrained.search import StopPatterns, TextSearch, compile_stops

__all__ = [
    "CompileCounts",
    "CompilePool",
    "Compiler",
    "GrammarCompiler",
    "NewMatcher",
    "StopPatterns",
    "TextSearch",
    "compile_stops",
]
