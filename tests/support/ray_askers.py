"""Who answers in a cluster's workers: found there by name, so in a module of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmserve.core import Request
from support.scripted_client import ScriptedClient, question_of

__all__ = ["open_dying", "open_scripted"]


@contextmanager
def open_scripted() -> Iterator[ScriptedClient]:
    """Answers in upper case."""
    yield ScriptedClient()


@contextmanager
def open_dying(marks: str) -> Iterator[ScriptedClient]:
    """Answers in upper case; the first worker to be asked `q7` is killed, and leaves a mark."""

    def rule(request: Request) -> str:
        mark = Path(marks, "killed")
        if question_of(request) == "q7" and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return question_of(request).upper()

    yield ScriptedClient(rule)
