"""The command line: flags in, output out.

Owns: the commands, their flags (derived from `core.config`), exit codes, everything printed.
Called by `mmserve` and `python -m mmserve`. Answers go to stdout, all else to stderr.

    argv -> command -> EngineConfig -> Engine (loads torch, only now) -> console
"""

from mmserve.cli.app import app, main

__all__ = ["app", "main"]
